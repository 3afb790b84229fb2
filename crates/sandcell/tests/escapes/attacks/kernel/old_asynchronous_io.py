# attack: set up the old asynchronous input and output
# class: kernel
# layer: seccomp
# expect: held

context = ctypes.create_string_buffer(8)
refused("io_setup", 8, context)
