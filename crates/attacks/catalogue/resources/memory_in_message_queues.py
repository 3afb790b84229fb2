# attack: take memory without end in System V message queues
# class: resources
# layer: memory_limit
# limits: memory=128, disk=32
# raised: memory=512, disk=32
# fresh: yes
# expect: held or out_of_memory

taken = 0
message = ctypes.create_string_buffer(struct.pack("q", 1) + bytes(8192))
number_of_send = {"x86_64": 69, "aarch64": 189}[platform.machine()]
queues = 0
while taken < 200 << 20 and queues < 32000:
    q = call("msgget", 0, 0o1600)[0]
    if q < 0:
        break
    queues += 1
    while call(number_of_send, q, message, 8000, 0o4000)[0] == 0:
        taken += 8000
verdict(taken >= 192 << 20, taken >> 20, "MiB")
