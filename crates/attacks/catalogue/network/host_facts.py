# attack: read the host's addresses, routes and connections
# class: network
# layer: network_namespace
# expect: held

text = {n: open("/proc/self/net/" + n).read().splitlines()[1:] for n in ("route", "arp", "unix", "tcp", "udp") if os.path.exists("/proc/self/net/" + n)}
finds([k for k in ("route", "arp") if text.get(k)] + [l for l in text.get("unix", []) if CANARIES["abstract"] in l] + [l for l in text.get("tcp", []) if f":{CANARIES['tcp']:04X} " in l])
