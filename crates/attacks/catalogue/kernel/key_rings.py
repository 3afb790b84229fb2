# attack: use the key rings
# class: kernel
# layer: seccomp
# expect: held
# quick: yes

refused("keyctl", 0, -3, 1)
