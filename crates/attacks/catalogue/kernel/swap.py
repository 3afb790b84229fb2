# attack: enable swap on a file
# class: kernel
# layer: seccomp
# expect: held
# unproven: without CAP_SYS_ADMIN the kernel refuses too

refused("swapon", b"/tmp", 0)
