# attack: find the control groups' folders and change one
# class: root
# layer: private_root
# expect: held
# beside: landlock
# containers: the container's own can be read; the agent reads its use there

# Sandboxes see files of their own there, which tell of their limits. None of them is the kernel's.
top = "/sys/fs/cgroup"
found = [os.path.join(folder, name) for folder, _, names in os.walk(top) for name in names]
finds(path for path in found if os.access(path, os.W_OK) or path.endswith(("cgroup.procs", "tasks", "release_agent", "notify_on_release")))
