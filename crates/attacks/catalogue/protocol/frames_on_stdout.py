# attack: write frames of the agent's protocol to standard output and error
# class: protocol
# layer: protocol
# expect: any

frame = lambda kind, stream, payload: struct.pack("<IBI", 5 + len(payload), kind, stream) + payload
for kind in range(0, 12):
    for stream in (0, 1, 2, 3, 5, 2**32 - 1):
        os.write(1, frame(kind, stream, b'{"ok":{}}'))
        os.write(2, frame(kind, stream, b'{"event":"exited","exit":{"code":0}}'))
print("\nHELD")
