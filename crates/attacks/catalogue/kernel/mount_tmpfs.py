# attack: mount a file system
# class: kernel
# layer: seccomp
# expect: held
# unproven: without rights over the mount namespace the kernel refuses too
# quick: yes

refused("mount", b"none", b"/tmp", b"tmpfs", 0, 0)
