# attack: take cores from the first process
# class: agent
# layer: seccomp
# expect: held
# unproven: only where a control group holds processor time may programs choose cores at all

fails(lambda: os.sched_setaffinity(1, {0}))
