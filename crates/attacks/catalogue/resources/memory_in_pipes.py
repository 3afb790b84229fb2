# attack: take memory without end in pipes
# class: resources
# layer: memory_limit
# limits: memory=128, disk=32
# unproven: the kernel's own limit on a user's pipes is lower
# fresh: yes
# expect: held or out_of_memory

import fcntl
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
taken, held_open = 0, []
try:
    while taken < 250 << 20:
        r, w = os.pipe()
        held_open.append((r, w))
        try:
            fcntl.fcntl(w, 1031, 1 << 20)
        except OSError:
            pass
        os.set_blocking(w, False)
        try:
            while True:
                taken += os.write(w, bytes(1 << 16))
        except BlockingIOError:
            pass
except OSError:
    pass
verdict(taken >= 192 << 20, taken >> 20, "MiB")
