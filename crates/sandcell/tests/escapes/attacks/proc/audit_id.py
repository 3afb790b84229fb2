# attack: take another audit identity, which the machine hands out by one counter
# class: proc
# layer: landlock
# expect: held

fails(lambda: open("/proc/self/loginuid", "w").write("0"), errno.EACCES, errno.EPERM, errno.ENOENT)
