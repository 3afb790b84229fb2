# attack: lower the priority of every process of the user
# class: agent
# layer: seccomp
# expect: held

def slow_down():
    # The lowest priority: a lower one is never refused, whatever priority a process has already.
    os.setpriority(os.PRIO_USER, 0, 19)
    os.setpriority(os.PRIO_PGRP, os.getpgid(0), 19)


fails(slow_down)
