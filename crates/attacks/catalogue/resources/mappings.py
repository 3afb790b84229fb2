# attack: take kernel memory in many mappings of many processes
# class: resources
# layer: memory_limit
# limits: memory=128, disk=32, processes=64
# raised: memory=2048, disk=32, processes=64
# fresh: yes
# expect: held or out_of_memory
# timeout: 40

def many():
    libc.mmap.restype = ctypes.c_void_p
    size = 60_000
    start = libc.mmap(None, ctypes.c_size_t(size * 4096), 0, 0x4022, -1, ctypes.c_long(0))
    for page in range(0, size, 2):
        if libc.mprotect(ctypes.c_void_p(start + page * 4096), ctypes.c_size_t(4096), 1):
            break

children = []
for _ in range(30):
    pid = os.fork()
    if pid == 0:
        many()
        time.sleep(60)
        os._exit(0)
    children.append(pid)
end = time.monotonic() + 20
alive = len(children)
while time.monotonic() < end and alive == len(children):
    time.sleep(0.5)
    alive = sum(os.waitpid(pid, os.WNOHANG)[0] == 0 for pid in children)
verdict(alive == len(children), alive, "of", len(children))
