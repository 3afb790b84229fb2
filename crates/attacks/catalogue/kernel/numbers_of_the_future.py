# attack: make system calls with numbers that no kernel uses yet, and with negative numbers
# class: kernel
# layer: seccomp
# expect: held
# unproven: the kernel answers ENOSYS to numbers it does not know

found = []
for number in list(range(453, 520)) + [1000, 4096, 65535, 0x7FFFFFFF]:
    result, error = in_child(lambda: list(call(number, 0, 0, 0, 0, 0, 0))) if number < 0 else call(number, -1, -1, -1, -1, -1, -1)
    if result >= 0 or error not in (errno.ENOSYS, errno.EPERM):
        found.append((number, errno.errorcode.get(error)))
finds(found)
