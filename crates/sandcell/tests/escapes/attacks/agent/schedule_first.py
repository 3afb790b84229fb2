# attack: make the first process run only when nothing else does
# class: agent
# layer: seccomp
# expect: held

fails(lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0)))
