# attack: fill memory with extended attributes
# class: resources
# layer: disk_limit
# limits: disk=16, memory=128
# unproven: the kernel bounds the attributes of each file in memory
# fresh: yes
# expect: held or out_of_memory or disk_full

taken = 0
try:
    for n in range(600):
        path = f"/tmp/attr{n}"
        open(path, "w").close()
        for k in range(64):
            os.setxattr(path, f"user.{k}", bytes(60000))
            taken += 60000
except OSError:
    pass
verdict(taken > 192 << 20, taken >> 20, "MiB")
