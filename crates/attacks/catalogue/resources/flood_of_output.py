# attack: print without end
# class: resources
# layer: output_limit
# timeout: 20
# unproven: a session cannot have a larger limit
# outside: server memory
# fresh: yes
# expect: held or output_limit

for _ in range(256):
    sys.stdout.write("x" * (1 << 20))
print()
print("HELD")
