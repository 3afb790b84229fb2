# attack: fill the first process's signal queue
# class: agent
# layer: pid_namespace
# expect: held
# unproven: the first process ignores signals without a handler

sent = 0
info = ctypes.create_string_buffer(struct.pack("iii", 34, 0, -1) + bytes(116))
for _ in range(3000):
    if libc.syscall(ctypes.c_long({"x86_64": 129, "aarch64": 138}[platform.machine()]), 1, 34, info) == 0:
        sent += 1
time.sleep(0.02)
pending = status_of(1)["SigQ"].strip()
verdict(int(pending.split("/")[0]) > 1024, pending)
