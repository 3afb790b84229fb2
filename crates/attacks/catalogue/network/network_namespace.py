# attack: be in the host's network namespace
# class: network
# layer: network_namespace
# expect: held

verdict(os.readlink("/proc/self/ns/net") == CANARIES["ns"]["net"], "the host's")
