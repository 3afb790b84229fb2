# attack: claim to be another process or user in a socket message
# class: sockets
# layer: capabilities
# expect: held
# unproven: claiming an id needs rights over that id

a, b = socket.socketpair()
b.setsockopt(socket.SOL_SOCKET, 16, 1)
found = []
for claim in ((1, 1000, 1000), (os.getpid(), 0, 0), (os.getpid(), 1000, 0)):
    try:
        a.sendmsg([b"x"], [(socket.SOL_SOCKET, 2, struct.pack("iII", *claim))])
        found.append(claim)
    except OSError:
        pass
finds(found)
