# attack: read timers and scheduling of all processes
# class: proc
# layer: private_proc
# expect: held
# unproven: this kernel shows them only to privileged readers

finds(p for p in ("timer_list", "sched_debug", "latency_stats") if text_of("/proc/" + p))
