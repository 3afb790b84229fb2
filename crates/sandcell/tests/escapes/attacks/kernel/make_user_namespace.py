# attack: make a user namespace by unshare
# class: kernel
# layer: seccomp
# expect: held
# beside: user_namespace
# quick: yes

refused("unshare", 0x10000000)
