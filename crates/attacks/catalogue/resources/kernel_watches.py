# attack: fill the disk's share of the memory with epoll watches in the kernel
# class: resources
# layer: memory_limit
# limits: memory=64, disk=512
# raised: memory=512, disk=512
# fresh: yes
# expect: held or out_of_memory
# timeout: 40

# An entry of the instance and one of what is watched.
WATCH, WANTED = 192, 104 << 20
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)


def fill(write):
    instances = [select.epoll() for _ in range(300)]
    watched, made = [], 0
    try:
        while len(watched) < 600:
            watched.append(os.eventfd(0))
    except OSError:
        pass
    for instance in instances:
        for fd in watched:
            try:
                instance.register(fd, select.EPOLLIN)
                made += 1
            except OSError:
                break
        os.write(write, struct.pack("q", made))
        made = 0
    time.sleep(30)


read, write = os.pipe()
children = []
for _ in range(4):
    pid = os.fork()
    if pid == 0:
        try:
            fill(write)
        finally:
            os._exit(0)
    children.append(pid)
os.close(write)
made, end = 0, time.monotonic() + 25
while made * WATCH < WANTED and time.monotonic() < end and select.select([read], [], [], 3)[0]:
    piece = os.read(read, 8)
    if not piece:
        break
    made += struct.unpack("q", piece)[0]
time.sleep(0.3)
alive = sum(os.waitpid(pid, os.WNOHANG)[0] == 0 for pid in children)
for pid in children:
    try:
        os.kill(pid, 9)
    except OSError:
        pass
verdict(made * WATCH >= WANTED and alive == len(children), made, "watches by", alive)
