# attack: call setns, even on the caller's namespace
# class: kernel
# layer: seccomp
# expect: held
# unproven: entering any namespace needs capabilities that the program lacks

fd = os.open("/proc/self/ns/user", os.O_RDONLY)
refused("setns", fd, 0)
