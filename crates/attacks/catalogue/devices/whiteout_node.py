# attack: make an overlay's whiteout, the one device node that needs no rights
# class: devices
# layer: seccomp
# expect: held

fails(lambda: os.mknod("/tmp/whiteout", stat.S_IFCHR, os.makedev(0, 0)))
