# attack: load a module from a file
# class: kernel
# layer: seccomp
# expect: held
# unproven: without CAP_SYS_MODULE the kernel refuses too

refused("finit_module", os.open("/tmp", os.O_RDONLY), b"", 0)
