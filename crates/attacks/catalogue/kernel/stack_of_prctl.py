# attack: change settings of system processes by prctl: memory map, speculation controls, I/O flusher
# class: kernel
# layer: seccomp
# expect: held
# unproven: most need missing capabilities; here they are answered EINVAL, as by an older kernel

results = [(n, call("prctl", n, 1, 0, 0, 0)) for n in (35, 53, 57, 62, 65, 71)]
finds((n, r) for n, (r, e) in results if r >= 0)
