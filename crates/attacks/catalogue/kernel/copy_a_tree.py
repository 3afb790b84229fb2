# attack: copy a part of the mount tree
# class: kernel
# layer: seccomp
# expect: held
# unproven: without rights over the mount namespace the kernel refuses too
# quick: yes

refused("open_tree", -100, b"/", 1)
