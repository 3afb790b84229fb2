# attack: make pairs of families that socket() refuses
# class: sockets
# layer: seccomp
# expect: held
# unproven: the kernel makes pairs of AF_UNIX and AF_TIPC only

found = []
for fam in range(2, 46):
    for kind in (1, 2, 5):
        try:
            a, b = socket.socketpair(fam, kind)
            a.close(), b.close()
            found.append((fam, kind))
        except OSError as error:
            if error.errno not in RULES:
                found.append((fam, kind, error.errno))
finds(found)
