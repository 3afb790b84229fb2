# attack: use each descriptor number up to the limit as a folder, a socket or a file of the host
# class: environment
# layer: private_root
# expect: held
# unproven: descriptors are closed when a program starts; nothing can be left out

found = []
for fd in range(3, 4096):
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        continue
    if stat.S_ISDIR(mode) or stat.S_ISBLK(mode):
        if not os.readlink(f"/proc/self/fd/{fd}").startswith(("/tmp", "/home/user", "/")) or os.path.exists(f"/proc/self/fd/{fd}/host"):
            found.append((fd, os.readlink(f"/proc/self/fd/{fd}")))
finds(found)
