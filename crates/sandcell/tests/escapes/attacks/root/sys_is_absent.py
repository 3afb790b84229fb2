# attack: read /sys
# class: root
# layer: private_root
# expect: held
# beside: landlock
# quick: yes
# containers: its folders are there and empty

# What there is of it are numbers of the sandbox's own.
own = {"/sys": {"devices", "fs"}, "/sys/devices": {"system"}, "/sys/devices/system": {"cpu"}, "/sys/fs": {"cgroup"}}
finds([name for folder, names in own.items() if os.path.isdir(folder) for name in os.listdir(folder) if name not in names])
