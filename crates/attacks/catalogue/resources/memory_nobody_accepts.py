# attack: take memory in data sent to connections that no process accepts, and close the senders
# class: resources
# layer: memory_limit
# limits: memory=128, disk=32
# raised: memory=2048, disk=32
# fresh: yes
# expect: held or out_of_memory
# timeout: 30

taken, listeners, data, end = 0, [], bytes(1 << 16), time.monotonic() + 12
while taken < 400 << 20 and time.monotonic() < end:
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    listeners.append(listener)
    for _ in range(3000):
        client = socket.socket()
        try:
            client.settimeout(0.2)
            client.connect(listener.getsockname())
            client.setblocking(False)
            while True:
                taken += client.send(data)
        except OSError:
            pass
        client.close()
        if taken >= 400 << 20 or time.monotonic() > end:
            break
time.sleep(0.5)
verdict(taken >= 300 << 20, taken >> 20, "MiB")
