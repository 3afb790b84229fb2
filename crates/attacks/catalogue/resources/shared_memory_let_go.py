# attack: keep shared memory whose pages are dropped from the page tables
# class: resources
# layer: memory_limit
# limits: memory=128, disk=32
# raised: memory=1024, disk=32
# proof: root
# fresh: yes
# expect: held or out_of_memory

import mmap
taken, maps, page = 0, [], b"\1" * (1 << 20)
try:
    zeros = os.open("/dev/zero", os.O_RDWR)
except OSError:
    zeros = -1
try:
    while taken < 256:
        m = mmap.mmap(-1, 32 << 20) if len(maps) % 2 or zeros < 0 else mmap.mmap(zeros, 32 << 20)
        maps.append(m)
        for at in range(0, 32 << 20, 1 << 20):
            m[at:at + (1 << 20)] = page
            m.madvise(mmap.MADV_DONTNEED, at, 1 << 20)
            taken += 1
except (OSError, ValueError, MemoryError):
    pass
time.sleep(0.3)
verdict(taken >= 192, taken, "MiB")
