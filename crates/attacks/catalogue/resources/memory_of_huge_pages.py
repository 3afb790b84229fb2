# attack: free all but one small page of each huge page, so that the kernel charges the rest to no process
# class: resources
# layer: resource_limits
# unproven: the launcher disables huge pages permanently, and the tests cannot skip that
# expect: held

HUGE, ADVICE, DISABLE, IS_DISABLED = 2 << 20, 14, 41, 42
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
found = []
for turned_on in ((0, 0), (1, 2)):
    if call("prctl", DISABLE, *turned_on, 0, 0)[0] == 0:
        found.append(("prctl", turned_on))
if call("prctl", IS_DISABLED, 0, 0, 0, 0)[0] != 1:
    found.append("huge pages are on")
area = libc.mmap(None, 2 * HUGE, 3, 0x22, -1, 0)
start = (area + HUGE - 1) // HUGE * HUGE
libc.madvise(start, HUGE, ADVICE)
ctypes.memset(start, 1, 1)
with open("/proc/self/smaps") as maps:
    huge = [line for line in maps if line.startswith("AnonHugePages:") and line.split()[1] != "0"]
finds(found + huge)
