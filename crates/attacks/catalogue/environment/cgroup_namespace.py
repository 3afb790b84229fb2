# attack: be in the host's control group namespace
# class: environment
# layer: cgroup_namespace
# expect: held

here = os.readlink("/proc/self/ns/cgroup")
verdict(here == CANARIES["ns"]["cgroup"], here)
