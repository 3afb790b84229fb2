# attack: load another kernel
# class: kernel
# layer: seccomp
# expect: held
# unproven: without CAP_SYS_BOOT the kernel refuses too
# quick: yes

refused("kexec_load", 0, 0, 0, 0)
