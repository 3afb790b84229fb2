# attack: read the sandbox's place in the host's cgroup tree from /proc/self/cgroup
# class: environment
# layer: cgroup_namespace
# expect: held
# proof: root

text = open("/proc/self/cgroup").read()
finds(line for line in text.splitlines() if line.split(":", 2)[2] not in ("/", ""))
