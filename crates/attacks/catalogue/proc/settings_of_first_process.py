# attack: change the first process's settings by its files
# class: proc
# layer: hidden_agent
# expect: held

found = []
for name, value in (("oom_score_adj", "1000"), ("coredump_filter", "0xff"), ("comm", "evil"), ("timerslack_ns", "1"), ("autogroup", "19"), ("uid_map", "0 0 1"), ("gid_map", "0 0 1"), ("setgroups", "allow"), ("loginuid", "0"), ("sched", "0")):
    try:
        fd = os.open("/proc/1/" + name, os.O_WRONLY)
        os.write(fd, value.encode())
        found.append(name)
    except OSError:
        pass
finds(found)
