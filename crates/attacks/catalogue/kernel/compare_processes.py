# attack: learn kernel addresses by comparing processes
# class: kernel
# layer: seccomp
# expect: held

refused("kcmp", os.getpid(), os.getpid(), 0, 0, 0)
