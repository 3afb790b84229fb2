# attack: fill the disk with open files that have no name
# class: resources
# layer: disk_limit
# limits: disk=16
# raised: disk=256
# fresh: yes
# expect: held or disk_full

written, held_open = 0, []
try:
    while written < 100 << 20:
        fd = os.open("/tmp", os.O_TMPFILE | os.O_RDWR)
        held_open.append(fd)
        written += os.write(fd, bytes(1 << 20))
except OSError:
    pass
for fd in held_open:
    os.close(fd)
verdict(written > 24 << 20, written >> 20, "MiB")
