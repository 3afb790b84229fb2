# attack: announce a frame of 4 GiB and send it
# class: protocol
# layer: protocol
# expect: any
# fresh: yes
# outside: server memory

os.write(4, b"\xff\xff\xff\xff")
for _ in range(64):
    os.write(4, bytes(1 << 20))
print("HELD")
