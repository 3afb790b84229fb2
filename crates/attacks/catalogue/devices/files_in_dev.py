# attack: make files, folders and links in /dev
# class: devices
# layer: private_root
# expect: held
# also_off: landlock, user_namespace
# proof: root

found = []
for action in (lambda: open("/dev/x", "w"), lambda: os.mkdir("/dev/y"), lambda: os.symlink("null", "/dev/z")):
    try:
        found.append(repr(action()))
    except OSError:
        pass
for name in ("x", "z"):
    if os.path.lexists("/dev/" + name):
        os.unlink("/dev/" + name)
if os.path.isdir("/dev/y"):
    os.rmdir("/dev/y")
finds(found)
