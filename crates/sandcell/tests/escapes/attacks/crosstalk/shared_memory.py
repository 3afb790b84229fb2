# attack: meet in System V shared memory
# class: crosstalk
# layer: ipc_namespace
# expect: held
# proof: root

# in: a
call("shmget", 0x5EC3, 4096, 0o1666)
# in: b
verdict(call("shmget", 0x5EC3, 0, 0)[0] >= 0, "the other one's memory is there")
