# attack: switch address randomisation off for programs to come
# class: kernel
# layer: seccomp
# expect: held

refused("personality", 0x0040000)
