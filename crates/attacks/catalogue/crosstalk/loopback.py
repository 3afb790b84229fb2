# attack: connect to a port that the other sandbox listens on
# class: crosstalk
# layer: network_namespace
# expect: held

# in: a
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", 25671))
listener.listen()
# in: b
connect("127.0.0.1", 25671)
