# attack: slow every process of the user down
# class: agent
# layer: seccomp
# expect: held

def slow_down():
    # Nobody may be made faster, and on a busy machine some have been slowed down already: as slow as the slowest is allowed for all.
    nice = lambda pid: int(open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[16])
    for _ in range(20):
        slowest = max(nice(pid) for pid in os.listdir("/proc") if pid.isdigit())
        try:
            os.setpriority(os.PRIO_USER, 0, slowest)
            os.setpriority(os.PRIO_PGRP, os.getpgid(0), slowest)
            return
        except OSError as error:
            last = error
    raise last


fails(slow_down)
