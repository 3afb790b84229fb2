# attack: use up the pipe buffers of everybody with the same user
# class: crosstalk
# layer: resource_limits
# expect: held
# unproven: the kernel gives everybody small pipes at the least
# outside: room

# in: a
import fcntl
held_open = []
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
try:
    while len(held_open) < 400:
        r, w = os.pipe()
        held_open.append((r, w))
        try:
            fcntl.fcntl(w, 1031, 1 << 20)
        except OSError:
            pass
except OSError:
    pass
# in: b
text = subprocess.run(["/bin/echo", "x" * 100000], capture_output=True, text=True).stdout
verdict(len(text) != 100001, len(text))
