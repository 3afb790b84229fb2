# attack: leave zombie processes without end
# class: resources
# layer: process_limit
# expect: held
# limits: processes=32
# raised: processes=400
# fresh: yes

count = 0
children = []
try:
    while count < 200:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        children.append(pid)
        count += 1
    result = count
except OSError:
    result = None
for pid in children:
    os.waitpid(pid, 0)
verdict(result, result, "zombies")
