# attack: detect reads of the other sandbox by inotify
# class: crosstalk
# layer: private_root
# expect: held

# in: a
fd = libc.inotify_init1(os.O_NONBLOCK)
for p in ("/usr/bin/env", "/usr/bin", "/etc", "/etc/passwd", "/usr", "/"):
    libc.inotify_add_watch(fd, p.encode(), 0xFFF)
# in: b
open("/usr/bin/env", "rb").read()
open("/etc/passwd", "rb").read()
# in: a
verdict(select.select([fd], [], [], 0.1)[0], "events came")
