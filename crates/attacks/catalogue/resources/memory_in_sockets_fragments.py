# attack: take memory in unread bytes of connections, each of which keeps a page of 32 KiB
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
while taken < MOST and time.monotonic() < end:
    held_open.append(pair())
    taken += fill(held_open[-1][0])
time.sleep(0.5)
verdict(taken >= MOST // 2, taken >> 20, "MiB in", len(held_open), "connections")
