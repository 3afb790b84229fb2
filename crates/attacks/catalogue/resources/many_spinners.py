# attack: use more processor time than the limit
# class: resources
# layer: cpu_limit
# expect: held
# limits: cpus=0.2
# raised: cpus=2
# fresh: yes
# needs: root

def spin():
    end = time.monotonic() + 1.2
    while time.monotonic() < end:
        pass
    os._exit(0)
children = []
for _ in range(4):
    pid = os.fork()
    if pid == 0:
        spin()
    children.append(pid)
started = time.monotonic()
for pid in children:
    os.waitpid(pid, 0)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
share = (used.ru_utime + used.ru_stime) / (time.monotonic() - started)
verdict(share > 0.4, f"{share:.2f} cores")
