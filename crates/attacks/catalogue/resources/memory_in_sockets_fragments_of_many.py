# attack: take memory in unread bytes of connections, by four processes at once after an idle period
# class: resources
# layer: memory_limit
# limits: memory=128, disk=32
# raised: memory=2048, disk=32
# fresh: yes
# expect: held or out_of_memory
# timeout: 30

PAGE, MOST, rest, sink = 1 << 15, 600 << 20, bytes((1 << 15) - 1), bytearray(1 << 15)
def pair():
    listener = socket.create_server(("127.0.0.1", 0))
    a = socket.create_connection(listener.getsockname())
    b, _ = listener.accept()
    a.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return a, b
time.sleep(3)
read, write = os.pipe()
children = []
for _ in range(4):
    pid = os.fork()
    if pid == 0:
        filler, drain = pair()
        def use_up():
            """Sends the rest of a fragment's page, and takes it out again."""
            filler.send(rest)
            left = len(rest)
            while left:
                left -= drain.recv_into(sink, left)
        def fill(a):
            """A byte that waits in each of many pages; how much that is."""
            a.setblocking(False)
            pages = 0
            try:
                for pages in range(1500):
                    a.send(b"x")
                    use_up()
            except BlockingIOError:
                pass
            return pages * PAGE
        taken, held_open, end = 0, [], time.monotonic() + 12
        while taken < MOST // 4 and time.monotonic() < end:
            held_open.append(pair())
            taken += fill(held_open[-1][0])
        os.write(write, struct.pack("q", taken))
        time.sleep(2)
        os._exit(0)
    children.append(pid)
os.close(write)
total, end = 0, time.monotonic() + 14
while time.monotonic() < end and select.select([read], [], [], max(0, end - time.monotonic()))[0]:
    piece = os.read(read, 8)
    if not piece:
        break
    total += struct.unpack("q", piece)[0]
    if total >= MOST // 2:
        break
time.sleep(0.3)
alive = sum(os.waitpid(pid, os.WNOHANG)[0] == 0 for pid in children)
for pid in children:
    try:
        os.kill(pid, 9)
    except OSError:
        pass
verdict(total >= MOST // 2 and alive >= 2, total >> 20, "MiB in", alive)
