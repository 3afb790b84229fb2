# attack: change what only the system should: memory map, speculation controls, io flusher
# class: kernel
# layer: seccomp
# expect: held
# unproven: most need rights that are gone; they are answered EINVAL here as by an older kernel

results = [(n, call("prctl", n, 1, 0, 0, 0)) for n in (35, 53, 57, 62, 65, 71)]
finds((n, r) for n, (r, e) in results if r >= 0)
