# attack: take a higher priority than the start priority
# class: privileges
# layer: resource_limits
# expect: held
# unproven: without CAP_SYS_NICE and with no limit raised on the host the kernel refuses too

fails(lambda: os.setpriority(os.PRIO_PROCESS, 0, -10))
