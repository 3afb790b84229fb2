# attack: make raw IP sockets
# class: sockets
# layer: seccomp
# expect: held
# unproven: without CAP_NET_RAW the kernel refuses too
# quick: yes

found = []
for kind in (socket.AF_INET, socket.AF_INET6):
    for protocol in (0, 1, 6, 17, 58, 255):
        try:
            socket.socket(kind, socket.SOCK_RAW, protocol).close()
            found.append((kind, protocol))
        except OSError:
            pass
finds(found)
