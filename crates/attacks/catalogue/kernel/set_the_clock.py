# attack: set the machine's clock
# class: kernel
# layer: seccomp
# expect: held
# unproven: without CAP_SYS_TIME the kernel refuses too

results = [call("settimeofday", 0, ctypes.create_string_buffer(8)), call("clock_settime", 0, ctypes.create_string_buffer(16))]
finds(errno.errorcode.get(e, e) for r, e in results if r >= 0 or e not in RULES)
