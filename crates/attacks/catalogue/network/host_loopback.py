# attack: connect to a service on the host's loopback
# class: network
# layer: network_namespace
# expect: held
# quick: yes

connect("127.0.0.1", CANARIES["tcp"])
