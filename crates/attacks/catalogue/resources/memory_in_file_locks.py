# attack: fill the kernel's memory with file locks, which it charges to no process
# class: resources
# layer: memory_limit
# limits: memory=128, disk=32
# raised: memory=1024
# fresh: yes
# expect: out_of_memory

import fcntl
files = [os.open(f"/tmp/{number}", os.O_RDWR | os.O_CREAT) for number in range(100)]
for offset in range(0, 1000, 2):
    for fd in files:
        fcntl.lockf(fd, fcntl.LOCK_EX, 1, offset)
for _ in range(30):
    fcntl.lockf(files[0], fcntl.LOCK_EX, 1, 0)
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    time.sleep(0.05)
verdict(True, "50,000 locks were kept for", 3, "seconds")
