# attack: meet in System V semaphores
# class: crosstalk
# layer: ipc_namespace
# expect: held
# proof: root

# in: a
made = call("semget", 0x5EC2, 1, 0o1666)[0]
# in: b
seen = call("semget", 0x5EC2, 0, 0)[0] >= 0
# in: a
libc.semctl(made, 0, 0)
# in: b
verdict(seen, "the other one's is there")
