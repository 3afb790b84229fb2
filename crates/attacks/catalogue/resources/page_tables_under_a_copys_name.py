# attack: take memory in page tables under the process name of session snapshots
# class: resources
# layer: memory_limit
# limits: memory=128, disk=32
# raised: memory=640, disk=32
# fresh: yes
# expect: held or out_of_memory

libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
def spread():
    libc.prctl(15, b"sandcell-copy")
    # MAP_PRIVATE, MAP_ANONYMOUS, MAP_NORESERVE. A page that is only read costs nothing but its table, one for each 2 MiB.
    at = libc.mmap(None, 60000 << 21, 1, 0x4022, -1, 0)
    if at in (None, ctypes.c_void_p(-1).value):
        return 0
    for number in range(60000):
        ctypes.string_at(at + (number << 21) + 4096, 1)
    time.sleep(1)
    return int(status_of()["VmPTE"].split()[0])
kib = in_child(spread, 12)
verdict(isinstance(kib, int) and kib > 192 << 10, kib, "KiB")
