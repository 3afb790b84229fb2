# attack: find the detached old root below any descriptor or working folder
# class: root
# layer: private_root
# expect: held
# unproven: the old root is what private_root takes away together with everything else

paths = []
for name in ("cwd", "root"):
    paths.append(os.readlink(f"/proc/self/{name}"))
paths += [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{fd}")]
finds(p for p in paths if "host" in p or p.startswith(("/l/", "/new", "/own")))
