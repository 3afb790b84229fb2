# attack: remove, rename or change the mode of /dev/null
# class: devices
# layer: private_root
# expect: held
# unproven: the suite never tries this on the host's nodes

found = []
for action in (lambda: os.unlink("/dev/null"), lambda: os.rename("/dev/null", "/dev/none"), lambda: os.chmod("/dev/null", 0), lambda: os.utime("/dev/null", (0, 0)), lambda: os.chown("/dev/null", 1000, 1000)):
    try:
        found.append(repr(action()))
    except OSError:
        pass
finds(found)
