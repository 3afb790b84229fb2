# attack: find and change folders of control groups
# class: root
# layer: private_root
# expect: held
# also_off: landlock
# containers: the container's control group is readable; the agent reads its usage there

# Sandboxes see two kinds of files of their own there, which tell of their limits. None of them is the kernel's.
OWN = {"cpu.max", "memory.max", "cpu.cfs_quota_us", "cpu.cfs_period_us", "memory.limit_in_bytes"}
top = "/sys/fs/cgroup"
reached = [line for line in open("/proc/self/mountinfo") if line.split(" - ")[1].split()[0] in ("cgroup", "cgroup2")]
for folder, folders, names in os.walk(top):
    for path in [folder] + [os.path.join(folder, name) for name in names]:
        name = os.path.basename(path)
        if os.path.isfile(path) and name not in OWN:
            reached.append(path)
        try:
            if os.path.isdir(path):
                os.mkdir(path + "/made")
            else:
                os.close(os.open(path, os.O_WRONLY))
            reached.append("changed " + path)
        except OSError:
            pass
finds(reached)
