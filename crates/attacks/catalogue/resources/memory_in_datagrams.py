# attack: take memory without end in unread datagrams
# class: resources
# layer: memory_limit
# limits: memory=128, disk=32
# raised: memory=2048, disk=32
# proof: root
# fresh: yes
# expect: held or out_of_memory

children = []
for _ in range(12):
    pid = os.fork()
    if pid == 0:
        open_ones = []
        payload = bytes(60000)
        try:
            while len(open_ones) < 110:
                s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
                s.bind(("127.0.0.1", 0))
                s.setblocking(False)
                open_ones.append(s)
                for _ in range(4):
                    s.sendto(payload, s.getsockname())
        except OSError:
            pass
        time.sleep(1)
        os._exit(0)
    children.append(pid)
deadline = time.monotonic() + 6
most = 0
while time.monotonic() < deadline:
    with open("/proc/net/udp") as table:
        sockets = table.read().splitlines()[1:]
    most = max(most, sum(int(line.split()[4].split(":")[1], 16) for line in sockets))
    if all(os.waitpid(pid, os.WNOHANG)[0] for pid in children[:1]):
        break
    time.sleep(0.02)
for pid in children:
    try:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    except OSError:
        pass
verdict(most > 168 << 20, most >> 20, "MiB in buffers of datagrams")
