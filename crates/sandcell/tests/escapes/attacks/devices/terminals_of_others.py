# attack: open terminals that somebody else has made
# class: devices
# layer: private_root
# expect: held
# unproven: which terminals the host has differs from machine to machine

finds(n for n in os.listdir("/dev/pts") if n not in ("ptmx",) and not n.isdigit())
