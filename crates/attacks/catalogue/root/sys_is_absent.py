# attack: read /sys
# class: root
# layer: private_root
# expect: held
# also_off: private_proc, landlock
# quick: yes
# containers: its folders are there and empty

# The sandbox has its own numbers there. The step that mounts them together with those of /proc also covers the host's /sys.
own = {"/sys": {"devices", "fs"}, "/sys/devices": {"system"}, "/sys/devices/system": {"cpu"}, "/sys/fs": {"cgroup"}}
finds([name for folder, names in own.items() if os.path.isdir(folder) for name in os.listdir(folder) if name not in names])
