# attack: take the machine's huge pages by an anonymous file
# class: resources
# layer: seccomp
# expect: held

HUGE = 4
found = []
for flags in (HUGE, HUGE | 1, HUGE | 2, HUGE | 21 << 26):
    fd, error = call("memfd_create", b"pages", flags)
    if fd >= 0:
        os.close(fd)
        found.append((hex(flags), "was made"))
    elif error not in (errno.EINVAL, errno.ENOSYS):
        found.append((hex(flags), errno.errorcode[error]))
fd, error = call("memfd_create", b"file", 1)
if fd < 0 and error != errno.ENOSYS:
    found.append(("an ordinary file", errno.errorcode[error]))
finds(found)
