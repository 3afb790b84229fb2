# attack: trace the first process
# class: agent
# layer: hidden_agent
# expect: held
# beside: seccomp
# quick: yes

result, error = call("ptrace", 16, 1, 0, 0)
if result == 0:
    call("ptrace", 17, 1, 0, 0)
verdict(result == 0, "attached")
