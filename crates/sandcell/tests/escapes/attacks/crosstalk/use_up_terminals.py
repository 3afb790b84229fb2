# attack: use up the machine's pseudo terminals
# class: crosstalk
# layer: private_root
# expect: held
# unproven: an instance of its own has a limit of its own
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
