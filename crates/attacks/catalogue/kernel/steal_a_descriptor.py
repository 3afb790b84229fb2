# attack: take a descriptor out of another process
# class: kernel
# layer: seccomp
# expect: held

fd = os.pidfd_open(os.getpid())
refused("pidfd_getfd", fd, 0, 0)
