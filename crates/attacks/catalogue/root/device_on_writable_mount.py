# attack: find a writable mount where device nodes would work
# class: root
# layer: private_root
# expect: held
# unproven: all mounts are made with nodev from the start
# containers: the container's control group refuses devices, and no process may make any

flags = {line.split()[4]: line.split()[5] for line in open("/proc/self/mountinfo")}
finds((point, value) for point, value in flags.items() if "nodev" not in value and not point.startswith("/dev"))
