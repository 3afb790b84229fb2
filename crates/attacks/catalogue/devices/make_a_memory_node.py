# attack: make a node for the machine's memory in /dev and in each temporary or home folder
# class: devices
# layer: seccomp
# expect: held
# unproven: without rights over the host the kernel refuses device nodes too

found = []
for folder in ("/tmp", "/home/user", "/dev/shm", "/dev", "/var/tmp"):
    try:
        os.mknod(folder + "/mem", stat.S_IFCHR | 0o666, os.makedev(1, 1))
        found.append(folder)
    except OSError:
        pass
finds(found)
