# attack: print millions of empty lines
# class: resources
# layer: output_limit
# timeout: 20
# unproven: a session cannot have a larger limit
# outside: server memory
# fresh: yes
# expect: held or output_limit

for _ in range(64):
    sys.stdout.write("\n" * (1 << 20))
print("HELD")
