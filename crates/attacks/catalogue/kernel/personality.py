# attack: disable address randomisation for later programs
# class: kernel
# layer: seccomp
# expect: held

refused("personality", 0x0040000)
