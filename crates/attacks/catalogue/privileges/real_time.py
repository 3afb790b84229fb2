# attack: take real-time priority over the whole machine
# class: privileges
# layer: resource_limits
# expect: held
# unproven: without CAP_SYS_NICE and with no limit raised on the host the kernel refuses too

fails(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
