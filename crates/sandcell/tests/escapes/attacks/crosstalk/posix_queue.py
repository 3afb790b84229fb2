# attack: meet in a POSIX message queue
# class: crosstalk
# layer: ipc_namespace
# expect: held

# in: a
attributes = ctypes.create_string_buffer(struct.pack("qqqq", 0, 1, 8, 0) + bytes(32))
call("mq_open", b"escape-meeting", 0o102, 0o666, attributes)
# in: b
fd = call("mq_open", b"escape-meeting", 0o2, 0, 0)[0]
if fd >= 0:
    libc.mq_unlink(b"/escape-meeting")
verdict(fd >= 0, "the other one's queue is there")
