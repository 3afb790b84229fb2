# attack: set up the old asynchronous I/O (io_setup)
# class: kernel
# layer: seccomp
# expect: held

context = ctypes.create_string_buffer(8)
refused("io_setup", 8, context)
