# attack: meet in a POSIX message queue
# class: crosstalk
# layer: ipc_namespace
# expect: held
# also_off: landlock, seccomp

# in: a
attributes = ctypes.create_string_buffer(struct.pack("qqqq", 0, 1, 8, 0) + bytes(32))
call("mq_open", b"escape-meeting", 0o102, 0o666, attributes)
# in: b
seen = call("mq_open", b"escape-meeting", 0, 0, 0)[0] >= 0
# in: a
libc.mq_unlink(b"/escape-meeting")
# in: b
verdict(seen, "the other one's queue is there")
