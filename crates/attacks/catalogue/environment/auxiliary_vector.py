# attack: find the path of the host's program in the auxiliary vector
# class: environment
# layer: private_root
# expect: held
# unproven: the interpreter starts inside the sandbox, so its path is a path inside

finds(p for p in CANARIES["paths"] if p.encode() in open("/proc/self/auxv", "rb").read())
