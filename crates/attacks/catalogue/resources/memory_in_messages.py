# attack: take memory without end in messages of Unix sockets
# class: resources
# layer: memory_limit
# needs: user
# limits: memory=64, disk=32
# raised: memory=1024, disk=32
# fresh: yes
# expect: held or out_of_memory
# timeout: 40

# A socket takes another whole message while its buffer has any room left.
MESSAGES = [bytes(180_000), bytes(200_000)]
WANTED = 104 << 20
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
held, taken = [], 0
try:
    while taken < WANTED:
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        held.append(pair)
        for end in pair:
            end.setblocking(False)
            for message in MESSAGES:
                taken += end.send(message)
except OSError as error:
    last = error
time.sleep(1)
verdict(taken >= WANTED, taken >> 20, "MiB in", len(held), "pairs")
