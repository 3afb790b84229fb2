# attack: connect to the Internet
# class: network
# layer: network_namespace
# expect: held
# unproven: only some hosts can reach the Internet
# quick: yes

connect("1.1.1.1", 443)
