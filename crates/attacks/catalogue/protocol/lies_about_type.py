# attack: show invalid pictures, and types that do not exist
# class: protocol
# layer: protocol
# expect: any

class Liar:
    def _repr_png_(self):
        return b"\x89PNG\r\n\x1a\n" + bytes(100000)
    def _repr_mimebundle_(self, **_):
        return {"image/png": b"no", "text/plain": "t", "application/../../x": "y", "\n": "z", 5: 6}
print("HELD")
Liar()
