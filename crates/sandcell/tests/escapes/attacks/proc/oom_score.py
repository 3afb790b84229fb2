# attack: make oneself unkillable for lack of memory
# class: proc
# layer: capabilities
# expect: held
# unproven: the limit of the machine's root is lower than any process here started with

before = int(open("/proc/self/oom_score_adj").read())
def go():
    with open("/proc/self/oom_score_adj", "w") as f:
        f.write("-1000")
    return open("/proc/self/oom_score_adj").read()
fails(go)
