# attack: take a port that only root may have
# class: network
# layer: capabilities
# expect: held
# unproven: a program that is started has no rights over the namespace, whatever the bounding set

fails(lambda: socket.socket().bind(("127.0.0.1", 80)))
