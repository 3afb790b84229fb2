# attack: send frames of the maximum length without end
# class: protocol
# layer: protocol
# expect: any
# fresh: yes
# outside: server memory

header = b'{"type":"display","nonce":"x","blobs":[{"mime":"text/plain","bytes":%d}]}' % ((8 << 20) - 200)
for _ in range(24):
    body = struct.pack("<I", len(header)) + header + bytes((8 << 20) - 200)
    data = memoryview(struct.pack("<I", len(body)) + body)
    while data:
        data = data[os.write(4, data):]
print("HELD")
