# attack: take memory while ever new processes under the name of session snapshots are killed first
# class: resources
# layer: memory_limit
# limits: memory=128, disk=32
# raised: memory=1024
# fresh: yes
# expect: out_of_memory
# containers: the limit ends it all the same, and the result reports a crash

def renew():
    children = []
    while True:
        if len(children) < 8:
            child = os.fork()
            if child == 0:
                libc.prctl(15, b"sandcell-copy")
                time.sleep(60)
                os._exit(0)
            children.append(child)
        children = [child for child in children if os.waitpid(child, os.WNOHANG) == (0, 0)]

for _ in range(3):
    if os.fork() == 0:
        renew()
libc.mmap.restype = ctypes.c_void_p
taken = 0
while taken < 400 << 20:
    # MAP_PRIVATE, MAP_ANONYMOUS, MAP_GROWSDOWN
    at = libc.mmap(ctypes.c_void_p(None), ctypes.c_size_t(10 << 20), 3, 0x122, -1, ctypes.c_long(0))
    if at in (None, ctypes.c_void_p(-1).value):
        break
    ctypes.memset(at, 1, 10 << 20)
    taken += 10 << 20
    time.sleep(0.005)
time.sleep(2)
verdict(taken >= 192 << 20, taken >> 20, "MiB")
