# attack: carry a bit to another sandbox by flock on masked files of /proc
# class: crosstalk
# layer: private_proc
# expect: held
# unproven: the host's own files are not readable

# in: a
import fcntl
held_open = []
for n in os.listdir("/proc"):
    try:
        if not n.isdigit() and n not in ("self", "thread-self", "net", "mounts"):
            fd = os.open("/proc/" + n, os.O_RDONLY | os.O_NONBLOCK)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held_open.append(fd)
    except OSError:
        pass
# in: b
import fcntl
seen = []
for n in os.listdir("/proc"):
    if not n.isdigit() and n not in ("self", "thread-self", "net", "mounts"):
        try:
            fd = os.open("/proc/" + n, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            seen.append(n)
        os.close(fd)
finds(seen)
