# attack: carry a bit to another sandbox by flock on a shared read-only file
# class: crosstalk
# layer: private_root
# expect: held

# in: a
import fcntl
held_open = open("/usr/bin/env", "rb")
fcntl.flock(held_open, fcntl.LOCK_EX | fcntl.LOCK_NB)
# in: b
import fcntl
fails_to_lock = False
try:
    fcntl.flock(open("/usr/bin/env", "rb"), fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    fails_to_lock = True
verdict(fails_to_lock, "the other one's lock is seen")
