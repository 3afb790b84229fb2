# attack: unshare a thread's descriptor table, so that its process does not show the descriptors
# class: kernel
# layer: seccomp
# expect: held

# close_range with CLOSE_RANGE_UNSHARE
refused(436, 1000000, 0xFFFFFFFF, 2)
