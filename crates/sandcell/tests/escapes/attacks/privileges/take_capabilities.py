# attack: take capabilities back by capset and by ambient ones
# class: privileges
# layer: capabilities
# expect: held
# unproven: a program that is started has none to raise, whatever the bounding set

found = []
header = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0))
data = ctypes.create_string_buffer(struct.pack("IIIIII", *[0xFFFFFFFF] * 6))
if libc.capset(header, data) == 0:
    found.append("capset")
for number in range(41):
    if call("prctl", 47, 2, number, 0, 0)[0] == 0:
        found.append(number)
finds(found)
