# attack: set the user attributes that an overlay with userxattr believes, on one's own files
# class: privileges
# layer: private_root
# expect: held
# unproven: the overlays' upper folders cannot be reached, so the attributes mean nothing; the file must stay what it is

os.makedirs("/tmp/o/d", exist_ok=True)
try:
    os.setxattr("/tmp/o", "user.overlay.redirect", b"/../../etc")
    os.setxattr("/tmp/o/d", "user.overlay.opaque", b"y")
except OSError:
    pass
verdict(os.listdir("/tmp/o") != ["d"], os.listdir("/tmp/o"))
