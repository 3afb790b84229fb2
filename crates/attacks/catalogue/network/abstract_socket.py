# attack: connect to an abstract socket of the host
# class: network
# layer: network_namespace
# expect: held
# also_off: landlock
# quick: yes

fails(lambda: socket.socket(socket.AF_UNIX).connect("\0" + CANARIES["abstract"]))
