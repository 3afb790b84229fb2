# attack: use up the epoll watches that all processes of the user share, with few descriptors open at a time
# class: crosstalk
# layer: memory_limit
# limits: memory=128, disk=32
# unproven: the user's watches are also limited for each sandbox, at any memory limit
# fresh: yes
# needs: user
# expect: held or out_of_memory
# timeout: 20

class Event(ctypes.Structure):
    _pack_ = 1 if platform.machine() == "x86_64" else 8
    _fields_ = [("events", ctypes.c_uint32), ("data", ctypes.c_uint64)]

# Whoever holds the files open watches nothing; whoever watches has each of them for a moment only. What is watched is the file
# by the number that it had then.
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
most = min(most, 1000)
near, far = socket.socketpair()
if os.fork() == 0:
    near.close()
    for file in [end for _ in range(most // 2 - 20) for end in os.pipe()]:
        if not far.recv(1):
            break
        socket.send_fds(far, [b"f"], [file])
    far.recv(1)
    os._exit(0)
far.close()
watcher = libc.epoll_create1(0)
event = ctypes.byref(Event(1, 0))
taken, end = 0, time.monotonic() + 12
while taken <= 500_000 and time.monotonic() < end:
    near.send(b"n")
    _, files, _, _ = socket.recv_fds(near, 1, 1)
    if not files:
        break
    for number in range(20, most):
        os.dup2(files[0], number)
        if libc.epoll_ctl(watcher, 1, number, event) == 0:
            taken += 1
        os.close(number)
    os.close(files[0])
verdict(taken > 500_000, taken, "watches")
