# attack: set the user attributes that an overlay with userxattr trusts, on files of the program
# class: privileges
# layer: private_root
# expect: held
# unproven: the program cannot reach the overlays' upper folders, so the attributes have no effect; the files must stay the same

os.makedirs("/tmp/o/d", exist_ok=True)
try:
    os.setxattr("/tmp/o", "user.overlay.redirect", b"/../../etc")
    os.setxattr("/tmp/o/d", "user.overlay.opaque", b"y")
except OSError:
    pass
verdict(os.listdir("/tmp/o") != ["d"], os.listdir("/tmp/o"))
