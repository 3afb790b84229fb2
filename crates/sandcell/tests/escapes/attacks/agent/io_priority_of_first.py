# attack: change the first process's priority of input and output
# class: agent
# layer: seccomp
# expect: held

refused("ioprio_set", 1, 1, (3 << 13))
