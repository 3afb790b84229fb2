# attack: fork without end
# class: resources
# layer: process_limit
# expect: held
# limits: processes=32
# raised: processes=400
# fresh: yes

children = []
try:
    while len(children) < 200:
        pid = os.fork()
        if pid == 0:
            time.sleep(20)
            os._exit(0)
        children.append(pid)
    result = f"{len(children)} children"
except OSError:
    result = None
for pid in children:
    os.kill(pid, 9), os.waitpid(pid, 0)
verdict(result, result)
