# attack: gain rights with a set-user-id program of /usr
# class: root
# layer: private_root
# expect: held
# unproven: without the layer the ids are not mapped, so the kernel ignores the bit
# containers: no-new-privileges holds, not a mount option

found = []
for folder in ("/usr/bin", "/usr/sbin", "/usr/lib"):
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if os.path.isfile(path) and os.stat(path).st_mode & 0o6000:
            found.append(path)
flags = {line.split()[4]: line.split()[5] for line in open("/proc/self/mountinfo")}
verdict("nosuid" not in flags["/usr"], found, flags["/usr"])
