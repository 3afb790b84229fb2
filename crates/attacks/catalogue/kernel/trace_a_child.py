# attack: trace a child process
# class: kernel
# layer: seccomp
# expect: held
# quick: yes

def go():
    result, error = call("ptrace", 0, 0, 0, 0)
    return [result, error]
result, error = in_child(go) or [0, 0]
verdict(result >= 0 or error not in RULES, result, errno.errorcode.get(error))
