# attack: find System V objects of the host
# class: network
# layer: ipc_namespace
# expect: held
# proof: root

found = []
for name, args in (("msgget", (LURE["ipc_key"], 0)), ("semget", (LURE["ipc_key"], 0, 0)), ("shmget", (LURE["ipc_key"], 0, 0))):
    if call(name, *args)[0] >= 0:
        found.append(name)
finds(found)
