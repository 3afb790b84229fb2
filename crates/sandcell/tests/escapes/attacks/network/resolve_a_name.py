# attack: resolve a name
# class: network
# layer: network_namespace
# expect: held
# unproven: whether the host itself has a name server differs from machine to machine

fails(lambda: socket.getaddrinfo("example.com", 80))
