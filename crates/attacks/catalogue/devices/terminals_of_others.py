# attack: open terminals of other processes
# class: devices
# layer: private_root
# expect: held
# unproven: the host's terminals differ from machine to machine

finds(n for n in os.listdir("/dev/pts") if n not in ("ptmx",) and not n.isdigit())
