# attack: read another process's memory
# class: kernel
# layer: seccomp
# expect: held

buffer = ctypes.create_string_buffer(8)
source = ctypes.create_string_buffer(b"12345678")
vector = lambda b: ctypes.create_string_buffer(struct.pack("QQ", ctypes.addressof(b), 8))
refused("process_vm_readv", os.getpid(), vector(buffer), 1, vector(source), 1, 0)
