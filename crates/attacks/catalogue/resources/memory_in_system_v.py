# attack: take memory without end in System V shared memory
# class: resources
# layer: memory_limit
# limits: memory=128, disk=32
# raised: memory=512, disk=32
# fresh: yes
# expect: held or out_of_memory

libc.shmat.restype = ctypes.c_void_p
taken = 0
result = None
try:
    while taken < 300:
        number, error = call("shmget", 0, 10 << 20, 0o1600)
        if number < 0:
            break
        address = libc.shmat(number, None, 0)
        ctypes.memset(ctypes.c_void_p(address), 1, 10 << 20)
        libc.shmdt(ctypes.c_void_p(address))
        taken += 10
    result = taken if taken >= 300 else None
except OSError:
    pass
verdict(result, result, "MiB")
