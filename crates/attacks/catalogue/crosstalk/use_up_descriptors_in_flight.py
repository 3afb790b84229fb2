# attack: use up the user's descriptors in flight, in sockets that are in flight as well
# class: crosstalk
# layer: memory_limit
# expect: held
# fresh: yes
# unproven: the launcher kills a sandbox with this many, at any limit
# outside: room

# in: a
# A child of its own, which begins when the answer is there.
if os.fork() == 0:
    time.sleep(0.5)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    p, q = socket.socketpair()
    x, y = socket.socketpair()
    socket.send_fds(p, [b"x"], [x.fileno()])
    # From here on x lies in q's queue alone, and what y sends lies in x.
    x.close()
    y.setblocking(False)
    try:
        while True:
            socket.send_fds(y, [b"x"], [0] * 250)
    except OSError:
        pass
    time.sleep(20)
    os._exit(0)
# in: b
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
ours, theirs = socket.socketpair()
def refused():
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        socket.send_fds(ours, [b"x"], [0])
    except OSError as error:
        return error
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    _, files, _, _ = socket.recv_fds(theirs, 1, 1)
    os.close(files[0])
time.sleep(1)
end = time.monotonic() + 4
while refused() and time.monotonic() < end:
    time.sleep(0.05)
verdict(refused(), refused())
