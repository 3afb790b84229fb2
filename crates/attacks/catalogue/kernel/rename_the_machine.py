# attack: change the host name
# class: kernel
# layer: seccomp
# expect: held
# unproven: without CAP_SYS_ADMIN the kernel refuses too

refused("sethostname", b"evil", 4)
