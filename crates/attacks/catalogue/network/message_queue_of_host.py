# attack: open a POSIX message queue of the host
# class: network
# layer: ipc_namespace
# expect: held
# also_off: landlock, seccomp

libc.mq_open.restype = ctypes.c_int
fd = call("mq_open", CANARIES["mq"].encode(), 0, 0, 0)[0]
verdict(fd >= 0, "it opened")
