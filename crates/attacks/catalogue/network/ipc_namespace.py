# attack: be in the host's IPC namespace
# class: network
# layer: ipc_namespace
# expect: held

verdict(os.readlink("/proc/self/ns/ipc") == CANARIES["ns"]["ipc"], "the host's")
