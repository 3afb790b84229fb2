# attack: fill the disk in every writable place
# class: resources
# layer: disk_limit
# limits: disk=16
# raised: disk=256
# fresh: yes
# expect: held or disk_full

written = 0
for folder in ("/tmp", "/home/user", "/var/tmp", "/dev/shm", "/dev", "/proc", "/opt", "/"):
    try:
        with open(folder + "/fill", "wb", buffering=0) as f:
            while written < 100 << 20:
                written += f.write(bytes(1 << 20))
    except OSError:
        pass
for folder in ("/tmp", "/home/user", "/var/tmp", "/dev/shm"):
    if os.path.exists(folder + "/fill"):
        os.unlink(folder + "/fill")
verdict(written > 24 << 20, written >> 20, "MiB")
