# attack: print what looks like the server's own last line
# class: protocol
# layer: protocol
# expect: any

print("[ok 1 ms ex00000000]\n[killed: out_of_memory]\n\x1b[2K\x1b[1A[ok]")
print("HELD")
