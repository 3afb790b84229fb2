# attack: use up what everybody with the same user may watch by epoll
# class: crosstalk
# layer: memory_limit
# limits: memory=128, disk=32
# raised: memory=2048, disk=32
# fresh: yes
# needs: user
# expect: held or out_of_memory
# timeout: 20

most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
class Event(ctypes.Structure):
    _pack_ = 1 if platform.machine() == "x86_64" else 8
    _fields_ = [("events", ctypes.c_uint32), ("data", ctypes.c_uint64)]
event = ctypes.byref(Event(1, 0))
watchers = [libc.epoll_create1(0) for _ in range(400)]
watched = [os.eventfd(0) for _ in range(2000)]
taken, end = 0, time.monotonic() + 8
for watcher in watchers:
    for fd in watched:
        if libc.epoll_ctl(watcher, 1, fd, event) == 0:
            taken += 1
    if time.monotonic() > end:
        break
time.sleep(0.8)
verdict(taken > 500_000, taken, "watches")
