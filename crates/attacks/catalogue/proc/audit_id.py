# attack: take a new audit identity from the single counter of the machine
# class: proc
# layer: private_proc
# expect: held
# unproven: the launcher takes it before it makes any sandbox; nothing can be left out
# containers: the daemon starts containers without one, and the kernel numbers each process that takes one

fails(lambda: os.write(os.open("/proc/self/loginuid", os.O_WRONLY), str(os.getuid()).encode()), errno.EACCES, errno.EPERM, errno.ENOENT)
