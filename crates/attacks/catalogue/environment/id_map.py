# attack: have more than one id
# class: environment
# layer: user_namespace
# expect: held
# containers: the daemon's containers share the host's users, as each result states

maps = [open(f"/proc/self/{n}_map").read().split() for n in ("uid", "gid")]
finds(m for m in maps if len(m) != 3 or m[0] != "1000" or m[2] != "1")
