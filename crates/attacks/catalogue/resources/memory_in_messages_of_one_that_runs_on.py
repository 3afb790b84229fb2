# attack: fill Unix sockets between two checks of an inactive sandbox, and continue to run without more memory
# class: resources
# layer: memory_limit
# needs: root
# limits: memory=64, disk=512
# raised: memory=1024, disk=512
# fresh: yes
# expect: held or out_of_memory
# timeout: 40

message = bytes(8000)
WANTED = 70 << 20
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(450)]
ends = [end for pair in pairs for end in pair]
for end in ends:
    end.setblocking(False)
time.sleep(3)
taken = 0
for end in ends:
    try:
        while True:
            taken += end.send(message)
    except OSError:
        pass
end = time.monotonic() + 6
while time.monotonic() < end:
    time.sleep(0.005)
# The kernel keeps twice as much for messages of this size.
verdict(taken >= WANTED, taken >> 20, "MiB in", len(pairs), "pairs")
