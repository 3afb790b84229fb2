# attack: read /sys
# class: root
# layer: private_root
# expect: held
# beside: private_proc, landlock
# quick: yes
# containers: its folders are there and empty

# What is there are numbers of the sandbox itself. They are mounted with those of /proc, which covers the host's /sys as well.
own = {"/sys": {"devices", "fs"}, "/sys/devices": {"system"}, "/sys/devices/system": {"cpu"}, "/sys/fs": {"cgroup"}}
finds([name for folder, names in own.items() if os.path.isdir(folder) for name in os.listdir(folder) if name not in names])
