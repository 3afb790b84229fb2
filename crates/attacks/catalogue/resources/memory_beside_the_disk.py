# attack: take memory in anonymous files where the disk limit is far above the memory limit
# class: resources
# layer: memory_limit
# limits: memory=128, disk=1024
# raised: memory=2048, disk=1024
# fresh: yes
# expect: held or out_of_memory

size = 0
held_open = []
try:
    while size < 400 << 20:
        if size % (50 << 20) == 0:
            held_open.append(os.memfd_create("x"))
        size += os.write(held_open[-1], bytes(1 << 20))
    time.sleep(0.5)
    result = f"{size >> 20} MiB"
except (OSError, MemoryError):
    result = None
verdict(result, result)
