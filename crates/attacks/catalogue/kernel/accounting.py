# attack: switch process accounting
# class: kernel
# layer: seccomp
# expect: held
# unproven: without CAP_SYS_PACCT the kernel refuses too

refused("acct", 0)
