# attack: watch a whole file system
# class: kernel
# layer: seccomp
# expect: held

refused("fanotify_init", 0x200, 0)
