# attack: carry a bit to another sandbox by flock on the time namespace
# class: crosstalk
# layer: ipc_namespace
# expect: held
# containers: all containers share the daemon's time and user namespaces, as the threat model states

# in: a
import fcntl
try:
    held_open = os.open("/proc/self/ns/time", os.O_RDONLY)
    fcntl.flock(held_open, fcntl.LOCK_EX | fcntl.LOCK_NB)
except FileNotFoundError:
    pass
# in: b
import fcntl
seen = []
try:
    fcntl.flock(os.open("/proc/self/ns/time", os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
except FileNotFoundError:
    pass
except OSError as error:
    seen.append(error)
finds(seen)
