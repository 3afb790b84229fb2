# attack: make system calls by their x32 numbers
# class: kernel
# layer: seccomp
# expect: held
# unproven: this kernel is built without x32, and answers ENOSYS too
# needs: x86_64

found = []
for number in list(range(0, 460)) + list(range(512, 548)):
    result, error = call(0x40000000 | number, -1, -1, -1, -1, -1, -1)
    if result >= 0 or error not in (errno.ENOSYS, errno.EPERM):
        found.append((number, errno.errorcode.get(error)))
finds(found)
