# attack: meet in a System V message queue
# class: crosstalk
# layer: ipc_namespace
# expect: held
# proof: root

# in: a
call("msgget", 0x5EC1, 0o1666)
# in: b
verdict(call("msgget", 0x5EC1, 0)[0] >= 0, "the other one's queue is there")
