# attack: test without blocking whether the other sandbox has read a page
# class: crosstalk
# layer: private_root
# expect: held

path = "/usr/bin/env"
fd = os.open(path, os.O_RDONLY)
os.read(fd, 16)
try:
    os.preadv(fd, [bytearray(16)], 0, os.RWF_NOWAIT)
    verdict(True, "the kernel tells what is cached")
except OSError as error:
    verdict(error.errno == errno.EAGAIN, error)
