# attack: connect to the Internet over IPv6
# class: network
# layer: network_namespace
# expect: held
# unproven: whether the host itself has a way out differs from machine to machine

connect("2606:4700::1111", 443)
