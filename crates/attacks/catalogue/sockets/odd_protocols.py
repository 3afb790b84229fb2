# attack: reach seldom used protocols: SCTP, DCCP, UDP-Lite, MPTCP, L2TP
# class: sockets
# layer: seccomp
# expect: held

found = []
for kind, protocol in ((1, 132), (5, 132), (1, 262), (2, 136), (6, 33), (2, 115), (2, 50)):
    for where in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.socket(where, kind, protocol).close()
            found.append((where, kind, protocol))
        except OSError as error:
            if error.errno not in RULES:
                found.append((where, kind, protocol, error.errno))
finds(found)
