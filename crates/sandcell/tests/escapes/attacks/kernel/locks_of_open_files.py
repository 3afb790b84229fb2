# attack: lock files so that the lock stays when nobody has them open
# class: kernel
# layer: seccomp
# expect: held

import fcntl
fd = os.open("/tmp/locked", os.O_RDWR | os.O_CREAT)
# F_OFD_SETLK
fails(lambda: fcntl.fcntl(fd, 37, struct.pack("hhqqi4x", 1, 0, 0, 1, 0)), errno.EPERM)
