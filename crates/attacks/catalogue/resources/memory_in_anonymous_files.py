# attack: take memory without end in anonymous files (memfd)
# class: resources
# layer: memory_limit
# limits: memory=128, disk=32
# raised: memory=512, disk=32
# fresh: yes
# proof: root
# expect: held or out_of_memory

size = 0
held_open = []
try:
    while size < 300 << 20:
        if size % (50 << 20) == 0:
            held_open.append(os.memfd_create("x"))
        size += os.write(held_open[-1], bytes(1 << 20))
    result = f"{size >> 20} MiB"
except (OSError, MemoryError):
    result = None
verdict(result, result)
