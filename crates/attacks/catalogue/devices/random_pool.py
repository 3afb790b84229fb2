# attack: change the machine's random pool
# class: devices
# layer: capabilities
# expect: held
# unproven: the calls need rights over the host, which no missing layer grants

import fcntl
fd = os.open("/dev/urandom", os.O_RDWR)
found = []
for request, argument in ((0x5206, 0), (0x5204, 0), (0x40045201, b"\0\0\0\0")):
    try:
        fcntl.ioctl(fd, request, argument)
        found.append(hex(request))
    except OSError:
        pass
os.close(fd)
finds(found)
