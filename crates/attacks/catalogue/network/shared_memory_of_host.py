# attack: find System V objects of the host
# class: network
# layer: ipc_namespace
# expect: held
# proof: root

found = []
for name, args in (("msgget", (CANARIES["ipc_key"], 0)), ("semget", (CANARIES["ipc_key"], 0, 0)), ("shmget", (CANARIES["ipc_key"], 0, 0))):
    if call(name, *args)[0] >= 0:
        found.append(name)
finds(found)
