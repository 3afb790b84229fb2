# attack: hold a mount by open_tree
# class: kernel
# layer: seccomp
# expect: held

refused("open_tree", -100, b"/usr", 0)
