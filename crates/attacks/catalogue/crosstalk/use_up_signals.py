# attack: use up the queued signals that all sandboxes of an owner share
# class: crosstalk
# layer: resource_limits
# expect: held
# unproven: without the limit, the host's limit holds
# outside: room

# in: a
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMIN})
info = ctypes.create_string_buffer(struct.pack("iii", int(signal.SIGRTMIN), 0, -1) + bytes(116))
number = {"x86_64": 129, "aarch64": 138}[platform.machine()]
for _ in range(20000):
    if call(number, os.getpid(), int(signal.SIGRTMIN), info)[0] < 0:
        break
# in: b
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMIN})
info = ctypes.create_string_buffer(struct.pack("iii", int(signal.SIGRTMIN), 0, -1) + bytes(116))
result = call({"x86_64": 129, "aarch64": 138}[platform.machine()], os.getpid(), int(signal.SIGRTMIN), info)
verdict(result[0] < 0, "no signal can be queued in the other sandbox", result)
