# attack: connect to the Internet over IPv6
# class: network
# layer: network_namespace
# expect: held
# unproven: only some hosts can reach the Internet

connect("2606:4700::1111", 443)
