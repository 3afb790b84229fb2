# attack: write another process's memory
# class: kernel
# layer: seccomp
# expect: held

buffer = ctypes.create_string_buffer(8)
vector = lambda b: ctypes.create_string_buffer(struct.pack("QQ", ctypes.addressof(b), 8))
refused("process_vm_writev", os.getpid(), vector(buffer), 1, vector(buffer), 1, 0)
