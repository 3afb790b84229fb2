# attack: fill the disk with one file
# class: resources
# layer: disk_limit
# limits: disk=16
# raised: disk=256
# fresh: yes
# expect: held or disk_full

written = 0
try:
    with open("/tmp/fill", "wb", buffering=0) as f:
        while written < 100 << 20:
            written += f.write(bytes(1 << 20))
except OSError:
    pass
os.unlink("/tmp/fill")
verdict(written > 24 << 20, written >> 20, "MiB")
