# attack: take another audit identity, which the machine hands out by one counter
# class: proc
# layer: private_proc
# expect: held
# unproven: the launcher takes it before any sandbox is made; nothing can be left out
# containers: the daemon starts containers without one, and numbers whoever takes one

fails(lambda: os.write(os.open("/proc/self/loginuid", os.O_WRONLY), str(os.getuid()).encode()), errno.EACCES, errno.EPERM, errno.ENOENT)
