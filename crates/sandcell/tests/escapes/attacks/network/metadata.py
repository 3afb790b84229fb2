# attack: ask the cloud's metadata service
# class: network
# layer: network_namespace
# expect: held
# unproven: whether the host itself has one differs from machine to machine
# quick: yes

connect("169.254.169.254", 80)
