# attack: lock a lot of memory
# class: privileges
# layer: resource_limits
# expect: held
# unproven: most hosts start every program with a low limit

size = 64 << 20
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
address = libc.mmap(None, size, 3, 0x22, -1, 0)
result = libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(size))
libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size))
verdict(result == 0, "64 MiB were locked")
