# attack: regain capabilities by capset and as ambient capabilities
# class: privileges
# layer: capabilities
# expect: held
# unproven: a program starts without capabilities to raise, with any bounding set

found = []
header = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0))
data = ctypes.create_string_buffer(struct.pack("IIIIII", *[0xFFFFFFFF] * 6))
if libc.capset(header, data) == 0:
    found.append("capset")
for number in range(41):
    if call("prctl", 47, 2, number, 0, 0)[0] == 0:
        found.append(number)
finds(found)
