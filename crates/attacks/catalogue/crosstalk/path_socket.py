# attack: connect to a path socket of the other sandbox
# class: crosstalk
# layer: private_root
# expect: held
# unproven: private files are a separate set-up step, which the tests cannot skip

# in: a
for p in ("/tmp/meet", "/dev/shm/meet", "/var/tmp/meet", "/home/user/meet"):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(p)
    listener.listen()
# in: b
finds(p for p in ("/tmp/meet", "/dev/shm/meet", "/var/tmp/meet", "/home/user/meet") if os.path.exists(p))
