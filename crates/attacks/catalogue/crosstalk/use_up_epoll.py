# attack: use up the epoll watches that all processes of the user share
# class: crosstalk
# layer: memory_limit
# limits: memory=128, disk=32
# unproven: the user's watches are also limited for each sandbox, at any memory limit
# fresh: yes
# needs: user
# expect: held or out_of_memory
# timeout: 20

most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
class Event(ctypes.Structure):
    _pack_ = 1 if platform.machine() == "x86_64" else 8
    _fields_ = [("events", ctypes.c_uint32), ("data", ctypes.c_uint64)]
def take():
    event = ctypes.byref(Event(1, 0))
    watchers = [libc.epoll_create1(0) for _ in range(400)]
    watched = [os.eventfd(0) for _ in range(min(2000, most - 450))]
    taken, end = 0, time.monotonic() + 6
    for watcher in watchers:
        for fd in watched:
            if libc.epoll_ctl(watcher, 1, fd, event) == 0:
                taken += 1
        if time.monotonic() > end:
            break
    return taken
# Each of them keeps what it has until all are done.
results, told = os.pipe()
wait, go_on = os.pipe()
for _ in range(4):
    if os.fork() == 0:
        os.write(told, struct.pack("q", take()))
        os.close(told)
        os.close(go_on)
        os.read(wait, 1)
        os._exit(0)
os.close(told)
taken = 0
while answer := os.read(results, 8):
    taken += struct.unpack("q", answer)[0]
    if taken > 500_000:
        break
verdict(taken > 500_000, taken, "watches")
