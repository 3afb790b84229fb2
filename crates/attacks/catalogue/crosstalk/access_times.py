# attack: detect reads of the other sandbox by access times
# class: crosstalk
# layer: private_root
# expect: held
# unproven: most file systems are mounted with relatime, which records only the first read of a day

# in: a
before = {p: os.stat(p).st_atime_ns for p in ("/usr/bin/env", "/usr/bin/sort", "/etc/passwd")}
# in: b
for p in ("/usr/bin/env", "/usr/bin/sort", "/etc/passwd"):
    open(p, "rb").read()
# in: a
finds(p for p, t in before.items() if os.stat(p).st_atime_ns != t)
