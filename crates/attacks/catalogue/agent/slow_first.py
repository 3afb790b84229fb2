# attack: lower the priority of the first process
# class: agent
# layer: seccomp
# expect: held
# quick: yes

# It may have been slowed down already, on a busy machine, and nobody may be made faster.
slowest = int(open("/proc/1/stat").read().rsplit(")", 1)[1].split()[16])
fails(lambda: os.setpriority(os.PRIO_PROCESS, 1, slowest))
