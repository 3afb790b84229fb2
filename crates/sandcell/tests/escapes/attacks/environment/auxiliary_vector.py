# attack: find the path of the host's program in the auxiliary vector
# class: environment
# layer: private_root
# expect: held
# unproven: the interpreter is started inside, so its path is one inside

finds(p for p in CANARIES["paths"] if p.encode() in open("/proc/self/auxv", "rb").read())
