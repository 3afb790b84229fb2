# attack: read the kernel's log
# class: kernel
# layer: seccomp
# expect: held
# quick: yes

refused("syslog", 10, 0, 0)
