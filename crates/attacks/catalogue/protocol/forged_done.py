# attack: report the cell as done while it runs, with a guessed nonce
# class: protocol
# layer: protocol
# expect: any
# fresh: yes

def send(header, blob=b""):
    header = json.dumps(header).encode()
    os.write(4, struct.pack("<II", 4 + len(header) + len(blob), len(header)) + header + blob)
for nonce in ("", "0", "1", "a" * 32):
    send({"type": "done", "nonce": nonce, "status": "ok", "exit_code": 0, "error": {}})
print("HELD")
