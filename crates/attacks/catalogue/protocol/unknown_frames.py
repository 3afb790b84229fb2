# attack: send frames that are not in the driver's protocol
# class: protocol
# layer: protocol
# expect: any
# fresh: yes

os.write(4, struct.pack("<II", 4 + 17, 17) + b'{"type":"unknown"}'[:17])
print("HELD")
