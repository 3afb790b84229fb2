# attack: page out another process's memory
# class: kernel
# layer: seccomp
# expect: held

fd = os.pidfd_open(os.getpid())
refused("process_madvise", fd, 0, 0, 21, 0)
