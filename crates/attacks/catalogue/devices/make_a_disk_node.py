# attack: make a node for the first disk
# class: devices
# layer: seccomp
# expect: held
# unproven: without rights over the host the kernel refuses device nodes too
# quick: yes

fails(lambda: os.mknod("/tmp/disk", stat.S_IFBLK | 0o600, os.makedev(8, 0)))
