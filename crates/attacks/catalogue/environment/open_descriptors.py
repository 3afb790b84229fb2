# attack: find descriptors of the server or of the agent
# class: environment
# layer: private_root
# expect: held
# unproven: descriptors are closed when a program starts; nothing can be left out
# quick: yes

links = []
for fd in os.listdir("/proc/self/fd"):
    try:
        links.append(os.readlink("/proc/self/fd/" + fd))
    except OSError:
        pass
finds(l for l in links if not l.startswith(("pipe:", "/dev/null", "/dev/urandom", "/dev/pts", "/proc/", "anon_inode:[event", "/home/user", "/tmp", "socket:", "anon_inode:inotify", "/dev/", "/memfd:sandcell-fault")))
