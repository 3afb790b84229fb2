# attack: slow every process of the user down
# class: agent
# layer: seccomp
# expect: held

fails(lambda: (os.setpriority(os.PRIO_USER, 0, 0), os.setpriority(os.PRIO_PGRP, os.getpgid(0), 0)))
