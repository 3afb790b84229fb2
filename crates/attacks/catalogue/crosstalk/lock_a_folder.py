# attack: carry a bit to another sandbox by flock on folders: the root, /usr, /proc, /dev
# class: crosstalk
# layer: private_root
# expect: held
# containers: there is no /opt/sandcell

# in: a
import fcntl
held_open = [os.open(p, os.O_RDONLY) for p in ("/", "/usr", "/etc", "/proc", "/dev", "/dev/pts", "/dev/shm", "/tmp", "/home", "/opt/sandcell", "/proc/sys")]
for fd in held_open:
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
# in: b
import fcntl
seen = []
for p in ("/", "/usr", "/etc", "/proc", "/dev", "/dev/pts", "/dev/shm", "/tmp", "/home", "/opt/sandcell", "/proc/sys"):
    try:
        fcntl.flock(os.open(p, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        seen.append(p)
finds(seen)
