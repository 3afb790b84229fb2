# attack: find the detached old root below any descriptor or working folder
# class: root
# layer: private_root
# expect: held
# unproven: private_root removes the old root together with everything else

paths = []
for name in ("cwd", "root"):
    paths.append(os.readlink(f"/proc/self/{name}"))
paths += [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{fd}")]
finds(p for p in paths if "host" in p or p.startswith(("/l/", "/new", "/own")))
