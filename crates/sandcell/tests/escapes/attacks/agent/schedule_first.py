# attack: make the first process run only when nothing else does
# class: agent
# layer: seccomp
# expect: held

fails(lambda: os.sched_setscheduler(1, os.SCHED_OTHER, os.sched_param(0)))
