# attack: write to the control channel from children after the end of the cell
# class: protocol
# layer: protocol
# expect: any
# fresh: yes

if os.fork() == 0:
    time.sleep(0.1)
    for _ in range(1000):
        try:
            os.write(4, struct.pack("<II", 4 + 40, 40) + b'{"type":"done","nonce":"x","status":"ok"}'[:40])
        except OSError:
            break
    os._exit(0)
print("HELD")
