# attack: make a set-user-id program in every writable folder and look at the mount
# class: root
# layer: private_root
# expect: held
# unproven: all mounts are made with nosuid from the start
# containers: no-new-privileges holds, not a mount option

flags = {line.split()[4]: line.split()[5] for line in open("/proc/self/mountinfo")}
finds((point, value) for point, value in flags.items() if "nosuid" not in value)
