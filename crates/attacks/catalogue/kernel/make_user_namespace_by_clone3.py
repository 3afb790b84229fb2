# attack: make a user namespace by clone3
# class: kernel
# layer: seccomp
# expect: held
# quick: yes

refused("clone3", 0, 0)
