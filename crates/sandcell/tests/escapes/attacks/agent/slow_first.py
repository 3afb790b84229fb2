# attack: slow the first process down
# class: agent
# layer: seccomp
# expect: held
# quick: yes

fails(lambda: os.setpriority(os.PRIO_PROCESS, 1, 0))
