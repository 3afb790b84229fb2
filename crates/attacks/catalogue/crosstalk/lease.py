# attack: block the other sandbox by a lease on a shared file
# class: crosstalk
# layer: private_root
# expect: held
# unproven: a lease needs the file's owner

# in: a
import fcntl
def lease(path):
    try:
        f = open(path, "rb")
        fcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        return f
    except OSError:
        return None
held_open = [lease(p) for p in ("/usr/bin/env", "/etc/passwd", "/dev/null", "/proc/version")]
# in: b
import fcntl
seen = []
for p in ("/usr/bin/env", "/etc/passwd", "/dev/null", "/proc/version"):
    try:
        f = open(p, "rb")
        if fcntl.fcntl(f, fcntl.F_GETLEASE) != fcntl.F_UNLCK:
            seen.append(p)
    except OSError:
        seen.append(p)
finds(seen)
