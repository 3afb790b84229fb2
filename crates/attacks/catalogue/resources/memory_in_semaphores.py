# attack: take memory without end in System V semaphores
# class: resources
# layer: memory_limit
# limits: memory=128, disk=32
# raised: memory=512, disk=32
# fresh: yes
# expect: held or out_of_memory

taken = 0
while taken < 200 << 20:
    if call("semget", 0, 32000, 0o1600)[0] < 0:
        break
    taken += 32000 * 64
verdict(taken >= 192 << 20, taken >> 20, "MiB")
