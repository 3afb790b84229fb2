# attack: connect to a socket of the host by its path
# class: network
# layer: private_root
# expect: held

fails(lambda: socket.socket(socket.AF_UNIX).connect(CANARIES["unix"]))
