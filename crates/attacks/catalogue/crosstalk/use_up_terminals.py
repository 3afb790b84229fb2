# attack: use up the machine's pseudo terminals
# class: crosstalk
# layer: private_root
# expect: held
# unproven: each devpts instance has a separate limit
# outside: room

# in: a
held_open = []
try:
    while len(held_open) < 500:
        held_open.append(os.openpty())
except OSError:
    pass
# in: b
master, slave = os.openpty()
os.close(master), os.close(slave)
verdict(False)
