# attack: decompress a zip bomb
# class: resources
# layer: memory_limit
# limits: memory=128, disk=16
# raised: memory=512, disk=64
# fresh: yes
# expect: held or out_of_memory

import zlib
bomb = zlib.compress(bytes(200 << 20), 9)
try:
    size = len(zlib.decompress(bomb))
except MemoryError:
    size = 0
verdict(size > 192 << 20, size >> 20, "MiB")
