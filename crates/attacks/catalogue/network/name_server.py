# attack: ask a name server
# class: network
# layer: network_namespace
# expect: held
# quick: yes

connect("8.8.8.8", 53, socket.SOCK_DGRAM)
