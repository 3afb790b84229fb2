# attack: pin pages of a truncated private file with sockets that received one byte of each through a pipe
# class: resources
# layer: seccomp
# expect: held

PAGE, SIZE, PIECES = 4096, 8 << 20, 16
sockets, pinned = [], 0
path = "/tmp/spliced"
fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
read, write = os.pipe()
try:
    while pinned < 32 << 20:
        for _ in range(SIZE >> 20):
            os.write(fd, bytes(1 << 20))
        pair = None
        for first in range(0, SIZE, PIECES * PAGE):
            for page in range(PIECES):
                os.splice(fd, write, 1, offset_src=first + page * PAGE)
            if pair is None or not select.select([], [pair[0]], [], 0)[1]:
                pair = socket.socketpair()
                sockets.append(pair)
            pinned += PAGE * os.splice(read, pair[0].fileno(), PIECES)
        os.ftruncate(fd, 0)
        os.lseek(fd, 0, os.SEEK_SET)
except OSError as error:
    print(error, flush=True)
os.unlink(path)
verdict(pinned >= 32 << 20, pinned >> 20, "MiB pinned by", len(sockets), "sockets")
