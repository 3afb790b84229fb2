# attack: change the I/O priority of the first process
# class: agent
# layer: seccomp
# expect: held

refused("ioprio_set", 1, 1, (3 << 13))
