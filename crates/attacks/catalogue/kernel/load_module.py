# attack: load a module
# class: kernel
# layer: seccomp
# expect: held
# unproven: without CAP_SYS_MODULE the kernel refuses too
# quick: yes

refused("init_module", 0, 0, 0)
