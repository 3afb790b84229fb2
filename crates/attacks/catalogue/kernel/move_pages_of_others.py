# attack: move pages of a process between nodes
# class: kernel
# layer: seccomp
# expect: held

refused("move_pages", 0, 0, 0, 0, 0, 0)
