# attack: remount /usr writable
# class: kernel
# layer: seccomp
# expect: held
# unproven: without rights over the mount namespace the kernel refuses too

refused("mount", b"none", b"/usr", 0, 32 | 4096, 0)
