# attack: take memory without end in one process
# class: resources
# layer: memory_limit
# limits: memory=128
# raised: memory=512
# fresh: yes
# expect: held or out_of_memory

blocks = []
try:
    while len(blocks) < 300:
        blocks.append(bytearray(b"x") * (1 << 20))
    result = f"{len(blocks)} MiB"
except MemoryError:
    result = None
blocks = None
verdict(result, result)
