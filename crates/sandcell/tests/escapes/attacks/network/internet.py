# attack: connect to the Internet
# class: network
# layer: network_namespace
# expect: held
# unproven: whether the host itself has a way out differs from machine to machine
# quick: yes

connect("1.1.1.1", 443)
