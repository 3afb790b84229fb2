# attack: carry a bit to another sandbox by flock on device nodes
# class: crosstalk
# layer: private_root
# expect: held
# needs: root

# in: a
import fcntl
held_open = [os.open("/dev/" + n, os.O_RDONLY) for n in ("null", "zero", "full", "random", "urandom")]
for fd in held_open:
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
# in: b
import fcntl
seen = []
for n in ("null", "zero", "full", "random", "urandom"):
    try:
        fcntl.flock(os.open("/dev/" + n, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        seen.append(n)
finds(seen)
