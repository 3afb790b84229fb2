# attack: pass bits in the free space of the host's disk
# class: crosstalk
# layer: private_root
# expect: held
# unproven: only processes outside know the host's numbers
# containers: the image's file system belongs to the daemon; containers cannot write to it

verdict(any(os.statvfs(path).f_blocks == CANARIES["disk_blocks"] for path in ("/", "/usr", "/etc", "/usr/lib", "/tmp")), "the host's disk")
