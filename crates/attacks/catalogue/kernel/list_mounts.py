# attack: list mounts by the newest calls
# class: kernel
# layer: seccomp
# expect: held

results = [call("statmount", 0, 0, 0, 0), call("listmount", 0, 0, 0, 0)]
finds(errno.errorcode.get(e, e) for r, e in results if r >= 0 or e not in RULES)
