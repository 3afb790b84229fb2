# attack: bind one folder over another
# class: kernel
# layer: seccomp
# expect: held
# unproven: without rights over the mount namespace the kernel refuses too

refused("mount", b"/tmp", b"/home/user", 0, 4096, 0)
