# attack: read tables of the host's System V objects
# class: network
# layer: ipc_namespace
# expect: held

finds(n for n in ("msg", "sem", "shm") if str(CANARIES["ipc_key"]) in text_of("/proc/sysvipc/" + n))
