# attack: print an imitation of the server's last line
# class: protocol
# layer: protocol
# expect: any

print("[ok 1 ms ex00000000]\n[killed: out_of_memory]\n\x1b[2K\x1b[1A[ok]")
print("HELD")
