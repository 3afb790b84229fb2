# attack: make another process the parent of a child (CLONE_PARENT)
# class: agent
# layer: seccomp
# expect: held

pid, error = call("clone", 0x8000 | 17, 0, 0, 0, 0)
if pid == 0:
    os._exit(0)
verdict(pid > 0 or error not in RULES, pid, errno.errorcode.get(error))
