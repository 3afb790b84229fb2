# attack: read files that the other sandbox has written
# class: crosstalk
# layer: private_root
# expect: held
# unproven: private files are a separate set-up step, which the tests cannot skip

# in: a
for p in ("/tmp", "/dev/shm", "/var/tmp", "/home/user"):
    open(p + "/note", "w").write("x")
# in: b
finds(p for p in ("/tmp", "/dev/shm", "/var/tmp", "/home/user") if os.path.exists(p + "/note"))
