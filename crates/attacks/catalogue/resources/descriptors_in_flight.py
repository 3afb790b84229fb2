# attack: hide descriptors without end in socket messages
# class: resources
# layer: resource_limits
# expect: held

sent = 0
pairs = []
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
try:
    while sent < 20000:
        a, b = socket.socketpair()
        pairs.append((a, b))
        a.setblocking(False)
        try:
            while True:
                a.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("250i", *[0] * 250))])
                sent += 250
        except BlockingIOError:
            pass
except OSError:
    pass
for a, b in pairs:
    a.close(), b.close()
verdict(sent > 8192, sent)
