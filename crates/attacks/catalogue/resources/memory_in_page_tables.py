# attack: take memory without end in page tables, mapping one page at many far places
# class: resources
# layer: memory_limit
# limits: memory=128, disk=32
# raised: memory=640, disk=32
# fresh: yes
# expect: held or out_of_memory

libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
def spread():
    # Reading a page of shared nothing costs no page of one's own, but a table each 2 MiB.
    made = 0
    fd = os.open("/usr/bin/env", os.O_RDONLY)
    while made < 60000:
        address = libc.mmap(ctypes.c_void_p(0x100000000 + made * (2 << 20)), 4096, 1, 0x11 if made == 0 else 0x11, fd, 0)
        if address in (None, ctypes.c_void_p(-1).value):
            break
        ctypes.string_at(address, 1)
        made += 1
    return int(status_of()["VmPTE"].split()[0])
kib = in_child(spread, 8)
verdict(isinstance(kib, int) and kib > 192 << 10, kib, "KiB")
