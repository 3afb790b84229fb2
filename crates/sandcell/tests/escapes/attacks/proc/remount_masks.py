# attack: take a mask of /proc away
# class: proc
# layer: seccomp
# expect: held

refused("umount2", b"/proc/kcore", 2)
