# attack: find interfaces other than loopback
# class: network
# layer: network_namespace
# expect: held

finds(line.split(":")[0].strip() for line in open("/proc/self/net/dev").read().splitlines()[2:] if line.split(":")[0].strip() != "lo")
