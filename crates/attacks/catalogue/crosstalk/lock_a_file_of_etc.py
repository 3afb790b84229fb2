# attack: carry a bit to another sandbox by flock on a file of /etc
# class: crosstalk
# layer: private_root
# expect: held

# in: a
import fcntl
held_open = open("/etc/passwd", "rb")
fcntl.flock(held_open, fcntl.LOCK_EX | fcntl.LOCK_NB)
# in: b
import fcntl
seen = False
try:
    fcntl.flock(open("/etc/passwd", "rb"), fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    seen = True
verdict(seen, "the other one's lock is seen")
