# attack: make a user namespace by clone
# class: kernel
# layer: seccomp
# expect: held
# also_off: user_namespace

def go():
    pid, error = call("clone", 0x10000000 | 17, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    if pid > 0:
        os.waitpid(pid, 0)
    return [pid, error]
pid, error = go()
verdict(pid > 0 or error not in RULES, pid, errno.errorcode.get(error))
