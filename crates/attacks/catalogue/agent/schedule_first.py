# attack: give the first process the scheduling policy SCHED_IDLE
# class: agent
# layer: seccomp
# expect: held

# The call says "done" and does nothing.
before = os.sched_getscheduler(1)
try:
    os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))
except OSError:
    pass
after = os.sched_getscheduler(1)
verdict(after != before, before, "became", after)
