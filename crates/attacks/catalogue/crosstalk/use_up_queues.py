# attack: use up the message queues that all sandboxes of an owner share
# class: crosstalk
# layer: resource_limits
# expect: held
# unproven: without the limit, the host's limit holds
# outside: room

# in: a
held_open = []
attributes = ctypes.create_string_buffer(struct.pack("qqqq", 0, 10, 8192, 0) + bytes(32))
while len(held_open) < 300:
    fd = call("mq_open", b"fill%d" % len(held_open), 0o102, 0o600, attributes)[0]
    if fd < 0:
        break
    held_open.append(fd)
# in: b
verdict(False)
