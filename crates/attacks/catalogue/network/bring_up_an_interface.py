# attack: make an interface or change loopback's address
# class: network
# layer: capabilities
# expect: held
# unproven: a program starts without rights over the namespace, with any bounding set

import fcntl
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
found = []
for request, data in ((0x8914, b"lo".ljust(16, b"\0") + struct.pack("H", 0)), (0x8916, b"lo".ljust(16, b"\0") + struct.pack("HH4s8x", 2, 0, bytes([10, 0, 0, 1]))), (0x89A0, b"br0".ljust(16, b"\0"))):
    try:
        fcntl.ioctl(s, request, data.ljust(40, b"\0"))
        found.append(hex(request))
    except OSError:
        pass
finds(found)
