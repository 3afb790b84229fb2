# attack: take the machine's huge pages by shared memory of System V
# class: resources
# layer: seccomp
# unproven: the kernel wants a capability for such a segment
# expect: held

HUGE, NO_RESERVE, CREATE = 0o4000, 0o10000, 0o1000
segment, error = call("shmget", 0, 2 << 20, CREATE | HUGE | NO_RESERVE | 0o600)
found = []
if segment >= 0:
    libc.shmctl(segment, 0, None)
    found.append("a segment was made")
elif error not in (errno.ENOMEM, errno.EPERM, errno.ENOSYS):
    found.append(errno.errorcode[error])
segment, error = call("shmget", 0, 4096, CREATE | 0o600)
if segment >= 0:
    libc.shmctl(segment, 0, None)
elif error != errno.ENOSYS:
    found.append(("an ordinary segment", errno.errorcode[error]))
finds(found)
