# attack: open a terminal of the other sandbox
# class: crosstalk
# layer: private_root
# expect: held
# unproven: each sandbox mounts a separate devpts instance

# in: a
master, slave = os.openpty()
# in: b
finds(n for n in os.listdir("/dev/pts") if n.isdigit())
