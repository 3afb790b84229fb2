# attack: pin pages of a truncated private file with sockets that hold one byte of each
# class: resources
# layer: seccomp
# expect: held

PAGE, SIZE = 4096, 8 << 20
sockets, pinned = [], 0
path = "/tmp/pinned"
fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
try:
    while pinned < 32 << 20:
        for _ in range(SIZE >> 20):
            os.write(fd, bytes(1 << 20))
        offset = 0
        while offset + 2 * PAGE <= SIZE:
            pair = socket.socketpair()
            sockets.append(pair)
            pair[0].setblocking(False)
            try:
                # The last byte of one page and the first of the next.
                while offset + 2 * PAGE <= SIZE and os.sendfile(pair[0].fileno(), fd, offset + PAGE - 1, 2) == 2:
                    offset += 2 * PAGE
                    pinned += 2 * PAGE
            except BlockingIOError:
                pass
        os.ftruncate(fd, 0)
        os.lseek(fd, 0, os.SEEK_SET)
except OSError as error:
    print(error, flush=True)
os.unlink(path)
verdict(pinned >= 32 << 20, pinned >> 20, "MiB pinned by", len(sockets), "sockets")
