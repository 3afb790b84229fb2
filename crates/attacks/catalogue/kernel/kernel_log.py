# attack: read the kernel's log
# class: kernel
# layer: seccomp
# expect: held
# unproven: kernel.dmesg_restrict refuses it on most hosts too
# quick: yes

refused("syslog", 10, 0, 0)
