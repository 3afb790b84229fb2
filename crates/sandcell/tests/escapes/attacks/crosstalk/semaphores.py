# attack: meet in System V semaphores
# class: crosstalk
# layer: ipc_namespace
# expect: held
# proof: root

# in: a
call("semget", 0x5EC2, 1, 0o1666)
# in: b
verdict(call("semget", 0x5EC2, 0, 0)[0] >= 0, "the other one's semaphores are there")
