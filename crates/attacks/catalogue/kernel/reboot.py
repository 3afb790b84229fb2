# attack: restart the machine (with a wrong magic number)
# class: kernel
# layer: seccomp
# expect: held
# unproven: without CAP_SYS_BOOT the kernel refuses too

refused("reboot", 0, 0, 0, 0)
