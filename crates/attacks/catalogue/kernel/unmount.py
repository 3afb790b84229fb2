# attack: unmount the mount that covers a folder
# class: kernel
# layer: seccomp
# expect: held
# unproven: without rights over the mount namespace the kernel refuses too

refused("umount2", b"/usr/src", 2)
