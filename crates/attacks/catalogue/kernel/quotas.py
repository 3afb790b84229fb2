# attack: ask for disk quotas
# class: kernel
# layer: seccomp
# expect: held

refused("quotactl", 0x80000100, 0, 0, 0)
