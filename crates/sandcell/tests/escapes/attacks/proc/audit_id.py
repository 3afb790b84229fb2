# attack: take another audit identity, which the machine hands out by one counter
# class: proc
# layer: private_proc
# expect: held
# unproven: the launcher takes it before any sandbox is made; nothing can be left out

fails(lambda: open("/proc/self/loginuid", "w").write("0"), errno.EACCES, errno.EPERM, errno.ENOENT)
