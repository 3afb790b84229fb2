# attack: enter another process's namespaces by its pidfd
# class: kernel
# layer: seccomp
# expect: held

fd = os.pidfd_open(os.getpid())
refused("setns", fd, 0)
