# attack: fill memory with extended attributes
# class: resources
# layer: disk_limit
# limits: disk=16, memory=128
# unproven: attributes of files in memory are bounded by the kernel for each file
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
