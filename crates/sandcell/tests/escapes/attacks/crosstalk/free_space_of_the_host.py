# attack: pass bits in the free space of the host's disk
# class: crosstalk
# layer: private_root
# expect: held
# unproven: the host's own numbers are known outside only
# containers: the image's file system is the daemon's own; nothing in it can be written

verdict(any(os.statvfs(path).f_blocks == CANARIES["disk_blocks"] for path in ("/", "/usr", "/etc", "/usr/lib", "/tmp")), "the host's disk")
