# attack: use any netlink protocol
# class: sockets
# layer: seccomp
# expect: held

found = []
for protocol in range(32):
    try:
        socket.socket(16, socket.SOCK_DGRAM, protocol).close()
        found.append(protocol)
    except OSError as error:
        if error.errno not in RULES:
            found.append((protocol, error.errno))
finds(found)
