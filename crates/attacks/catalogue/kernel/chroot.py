# attack: change the root
# class: kernel
# layer: seccomp
# expect: held
# unproven: without CAP_SYS_CHROOT the kernel refuses too
# quick: yes

refused("chroot", b"/tmp")
