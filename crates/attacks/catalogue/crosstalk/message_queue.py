# attack: meet in a System V message queue
# class: crosstalk
# layer: ipc_namespace
# expect: held
# proof: root

# in: a
made = call("msgget", 0x5EC1, 0o1666)[0]
# in: b
seen = call("msgget", 0x5EC1, 0)[0] >= 0
# in: a
libc.msgctl(made, 0, None)
# in: b
verdict(seen, "the other one's is there")
