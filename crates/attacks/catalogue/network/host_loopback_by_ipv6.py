# attack: connect to a service on the host's loopback over IPv6
# class: network
# layer: network_namespace
# expect: held
# quick: yes

connect("::ffff:127.0.0.1", CANARIES["tcp"])
