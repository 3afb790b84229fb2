# attack: ask for a file's handle
# class: root
# layer: seccomp
# expect: held

buffer = ctypes.create_string_buffer(struct.pack("Ii", 64, 0) + bytes(64))
mount = ctypes.c_int()
refused("name_to_handle_at", -100, b"/tmp", buffer, ctypes.byref(mount), 0)
