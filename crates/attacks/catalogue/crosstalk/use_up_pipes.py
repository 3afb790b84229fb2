# attack: use up the pipe buffers that all processes of the user share
# class: crosstalk
# layer: resource_limits
# expect: held
# unproven: the kernel always allows small pipes
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
