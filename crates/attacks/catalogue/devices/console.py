# attack: open the console and virtual terminals
# class: devices
# layer: private_root
# expect: held
# unproven: without rights over the host the nodes cannot be opened

finds(p for p in ("/dev/console", "/dev/tty0", "/dev/tty1", "/dev/ttyS0", "/dev/vcs", "/dev/hvc0") if opens(p, os.O_RDWR))
