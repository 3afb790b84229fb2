# attack: detect by inotify when the other sandbox uses a device node
# class: crosstalk
# layer: private_root
# expect: held
# needs: root

# in: a
fd = libc.inotify_init1(os.O_NONBLOCK)
for p in ("/dev/null", "/dev/zero", "/dev"):
    libc.inotify_add_watch(fd, p.encode(), 0xFFF)
# in: b
open("/dev/null", "wb").write(b"x")
open("/dev/zero", "rb").read(1)
# in: a
verdict(select.select([fd], [], [], 0.1)[0], "events came")
