# attack: meet in System V shared memory
# class: crosstalk
# layer: ipc_namespace
# expect: held
# proof: root

# in: a
made = call("shmget", 0x5EC3, 4096, 0o1666)[0]
# in: b
seen = call("shmget", 0x5EC3, 0, 0)[0] >= 0
# in: a
libc.shmctl(made, 0, None)
# in: b
verdict(seen, "the other one's is there")
