# attack: make a ping socket (datagrams of ICMP)
# class: sockets
# layer: seccomp
# expect: held
# unproven: net.ipv4.ping_group_range refuses it in a new network namespace too

found = []
for kind, protocol in ((socket.AF_INET, 1), (socket.AF_INET6, 58)):
    try:
        socket.socket(kind, socket.SOCK_DGRAM, protocol).close()
        found.append(protocol)
    except OSError:
        pass
finds(found)
