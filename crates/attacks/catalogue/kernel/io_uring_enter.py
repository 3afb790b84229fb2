# attack: use io_uring's other calls
# class: kernel
# layer: seccomp
# expect: held

results = [call("io_uring_enter", -1, 0, 0, 0, 0, 0), call("io_uring_register", -1, 0, 0, 0)]
finds(errno.errorcode.get(e, e) for r, e in results if r >= 0 or e not in RULES)
