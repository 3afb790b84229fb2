# attack: call setns at all, on one's own namespace
# class: kernel
# layer: seccomp
# expect: held
# unproven: entering any namespace takes rights, which are gone

fd = os.open("/proc/self/ns/user", os.O_RDONLY)
refused("setns", fd, 0)
