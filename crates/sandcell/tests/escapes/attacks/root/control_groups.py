# attack: find the control groups' folders and change one
# class: root
# layer: private_root
# expect: held
# beside: landlock
# containers: the container's own can be read; the agent reads its use there

finds(path for path in ("/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/unified") if os.path.exists(path))
