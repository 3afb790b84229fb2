# attack: take the machine's huge pages, which the kernel counts as memory of no process
# class: resources
# layer: seccomp
# expect: held

# Without a reservation this comes through on a machine without a pool as well; no page is touched.
PRIVATE, SHARED, ANONYMOUS, HUGE, NO_RESERVE = 0x2, 0x1, 0x20, 0x40000, 0x4000
mmap = {"x86_64": 9, "aarch64": 222}[platform.machine()]
found = []
for kind in (PRIVATE, SHARED):
    for size in (0, 21 << 26, 30 << 26):
        flags = kind | ANONYMOUS | HUGE | NO_RESERVE | size
        address, error = call(mmap, 0, 1 << 30, 3, flags, -1, 0)
        if error not in (errno.ENOMEM, errno.EPERM) and not (size and error == errno.EINVAL):
            found.append((hex(flags), errno.errorcode.get(error, address)))
# The same without huge pages still works.
address, error = call(mmap, 0, 1 << 16, 3, PRIVATE | ANONYMOUS | NO_RESERVE, -1, 0)
if error:
    found.append(("ordinary memory", errno.errorcode[error]))
finds(found)
