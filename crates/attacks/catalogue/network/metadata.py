# attack: ask the cloud's metadata service
# class: network
# layer: network_namespace
# expect: held
# unproven: only some hosts have one
# quick: yes

connect("169.254.169.254", 80)
