# attack: exempt the program from the OOM killer
# class: proc
# layer: capabilities
# expect: held
# unproven: the minimum that the machine's root set is below the start value of each process here

before = int(open("/proc/self/oom_score_adj").read())
def go():
    with open("/proc/self/oom_score_adj", "w") as f:
        f.write("-1000")
    return open("/proc/self/oom_score_adj").read()
fails(go)
