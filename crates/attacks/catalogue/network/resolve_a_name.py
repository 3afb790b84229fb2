# attack: resolve a name
# class: network
# layer: network_namespace
# expect: held
# unproven: only some hosts have a name server

fails(lambda: socket.getaddrinfo("example.com", 80))
