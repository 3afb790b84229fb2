# attack: put the program's pages into a pipe
# class: kernel
# layer: seccomp
# expect: held

read, write = os.pipe()
page = ctypes.create_string_buffer(4096)
refused("vmsplice", write, ctypes.create_string_buffer(struct.pack("QQ", ctypes.addressof(page), 4096)), 1, 0)
