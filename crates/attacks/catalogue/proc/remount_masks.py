# attack: unmount a mask of /proc
# class: proc
# layer: seccomp
# expect: held

refused("umount2", b"/proc/kcore", 2)
