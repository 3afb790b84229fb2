# attack: pass bits in the free space of the host's disk
# class: crosstalk
# layer: private_root
# expect: held
# unproven: the host's own numbers are known outside only

verdict(any(os.statvfs(path).f_blocks == LURE["disk_blocks"] for path in ("/", "/usr", "/etc", "/usr/lib", "/tmp")), "the host's disk")
