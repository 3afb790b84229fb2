# attack: change the first process's scheduling by sched_setattr
# class: agent
# layer: seccomp
# expect: held

refused("sched_setattr", 1, ctypes.create_string_buffer(struct.pack("IIQiIQQQ", 48, 5, 0, 0, 0, 0, 0, 0)), 0)
