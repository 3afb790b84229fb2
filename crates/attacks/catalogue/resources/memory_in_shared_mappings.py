# attack: take memory without end in shared anonymous mappings
# class: resources
# layer: memory_limit
# limits: memory=128, disk=32
# raised: memory=512, disk=32
# proof: root
# fresh: yes
# expect: held or out_of_memory

import mmap
maps = []
try:
    while len(maps) < 300:
        m = mmap.mmap(-1, 1 << 20)
        m.write(b"x" * (1 << 20))
        maps.append(m)
    result = f"{len(maps)} MiB"
except (OSError, MemoryError, ValueError):
    result = None
for m in maps:
    m.close()
verdict(result, result)
