# attack: take memory without end in unread inotify events
# class: resources
# layer: memory_limit
# needs: user
# limits: memory=64, disk=32
# raised: memory=1024, disk=32
# fresh: yes
# expect: held or out_of_memory
# timeout: 60

IN_CREATE, EVENT, WANTED = 0x100, 512, 104 << 20
events = int(open("/proc/sys/fs/inotify/max_queued_events").read())
# A sandbox may have few instances, so the rest is memory of its own.
instances = [instance for instance in (libc.inotify_init() for _ in range(16)) if instance >= 0]
own = bytearray(max(WANTED - len(instances) * events * EVENT, 0))
os.makedirs("watched", exist_ok=True)
for instance in instances:
    libc.inotify_add_watch(instance, b"watched", IN_CREATE)
made = 0
try:
    # Two names in turn: a notification like the last one is dropped.
    for turn in range(events):
        name = "watched/" + "ab"[turn % 2] * 250
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
        os.unlink(name)
        made += 1
except OSError as error:
    last = error
time.sleep(1)
taken = made * EVENT * len(instances) + len(own)
verdict(taken >= WANTED, made, "notifications in", len(instances), "instances,", taken >> 20, "MiB")
