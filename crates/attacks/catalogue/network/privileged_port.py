# attack: bind a port that only root may use
# class: network
# layer: capabilities
# expect: held
# unproven: a program starts without rights over the namespace, with any bounding set

fails(lambda: socket.socket().bind(("127.0.0.1", 80)))
