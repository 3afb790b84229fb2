# attack: print one line without end, to both streams, as bytes that are not text
# class: resources
# layer: output_limit
# timeout: 20
# unproven: a session cannot have a larger limit
# outside: server memory
# fresh: yes
# expect: held or output_limit

for _ in range(128):
    os.write(1, b"\xff\x00\x1b" * (1 << 18))
    os.write(2, b"\xfe" * (1 << 20))
print()
print("HELD")
