# attack: take memory without end in unread socket data
# class: resources
# layer: memory_limit
# limits: memory=128, disk=32
# raised: memory=640, disk=32
# fresh: yes
# expect: held or out_of_memory

def fill():
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    taken, held_open = 0, []
    try:
        while taken < 80 << 20:
            pair = socket.socketpair()
            held_open.append(pair)
            for s in pair:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
                s.setblocking(False)
                try:
                    while True:
                        taken += s.send(bytes(1 << 15))
                except BlockingIOError:
                    pass
    except OSError:
        pass
    return taken, held_open
read, write = os.pipe()
children = []
for _ in range(5):
    pid = os.fork()
    if pid == 0:
        taken, held_open = fill()
        os.write(write, struct.pack("q", taken))
        time.sleep(1.5)
        os._exit(0)
    children.append(pid)
os.close(write)
total, end = 0, time.monotonic() + 4
while time.monotonic() < end and select.select([read], [], [], max(0, end - time.monotonic()))[0]:
    piece = os.read(read, 8)
    if not piece:
        break
    total += struct.unpack("q", piece)[0]
    if total >= 192 << 20:
        break
time.sleep(0.3)
alive = sum(os.waitpid(pid, os.WNOHANG)[0] == 0 for pid in children)
for pid in children:
    try:
        os.kill(pid, 9)
    except OSError:
        pass
verdict(total >= 192 << 20 and alive >= 3, total >> 20, "MiB in", alive)
