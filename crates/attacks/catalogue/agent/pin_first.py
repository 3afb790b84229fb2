# attack: change the CPU affinity of the first process
# class: agent
# layer: seccomp
# expect: held
# unproven: programs may choose their cores only where a control group limits processor time

fails(lambda: os.sched_setaffinity(1, {0}))
