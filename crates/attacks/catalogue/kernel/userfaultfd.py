# attack: handle page faults, the usual help of kernel exploits
# class: kernel
# layer: seccomp
# expect: held
# quick: yes

refused("userfaultfd", 1)
