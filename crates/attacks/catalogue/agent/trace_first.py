# attack: trace the first process
# class: agent
# layer: hidden_agent
# expect: held
# also_off: seccomp
# quick: yes

# Seized, so that it is not stopped, by a child, so that its end lets go.
verdict((in_child(lambda: list(call("ptrace", 0x4206, 1, 0, 0))) or [-1])[0] == 0, "attached")
