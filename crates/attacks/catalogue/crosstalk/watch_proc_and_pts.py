# attack: detect by inotify when the other sandbox uses /proc, /dev/pts and /dev/shm
# class: crosstalk
# layer: private_proc
# expect: held
# containers: code sees the agent of the same container read /proc/meminfo

# in: a
fd = libc.inotify_init1(os.O_NONBLOCK)
watched = {}
for p in ("/proc/version", "/dev/pts", "/dev/shm", "/tmp", "/proc/sys/kernel/hostname", "/proc/meminfo"):
    watched[libc.inotify_add_watch(fd, p.encode(), 0xFFF)] = p
# in: b
open("/proc/version").read(), open("/proc/meminfo").read(), open("/dev/shm/x", "w").write("x"), open("/tmp/watched", "w").write("x")
master, slave = os.openpty()
os.close(master), os.close(slave)
# in: a
events = os.read(fd, 4096) if select.select([fd], [], [], 0.1)[0] else b""
verdict(events, watched.get(struct.unpack("i", events[:4] or bytes(4))[0]), events)
