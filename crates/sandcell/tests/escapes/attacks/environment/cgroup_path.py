# attack: learn from /proc/self/cgroup where the sandbox is in the host's tree
# class: environment
# layer: cgroup_namespace
# expect: held
# proof: root

text = open("/proc/self/cgroup").read()
finds(line for line in text.splitlines() if line.split(":", 2)[2] not in ("/", ""))
