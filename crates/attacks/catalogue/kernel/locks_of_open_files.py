# attack: take locks of open file descriptions, which stay when no process has the file open
# class: kernel
# layer: seccomp
# expect: held

import fcntl
fd = os.open("/tmp/locked", os.O_RDWR | os.O_CREAT)
# F_OFD_SETLK
fails(lambda: fcntl.fcntl(fd, 37, struct.pack("hhqqi4x", 1, 0, 0, 1, 0)), errno.EPERM)
