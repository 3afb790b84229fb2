# attack: connect to an abstract socket of the host in the host's network namespace
# class: network
# layer: landlock
# expect: held
# also_off: network_namespace

fails(lambda: socket.socket(socket.AF_UNIX).connect("\0" + CANARIES["abstract"]))
