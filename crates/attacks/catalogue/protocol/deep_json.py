# attack: send a header nested a million deep
# class: protocol
# layer: protocol
# expect: any
# fresh: yes

header = b'{"type":' + b"[" * 900000
data = memoryview(struct.pack("<II", 4 + len(header), len(header)) + header)
while data:
    data = data[os.write(4, data):]
print("HELD")
