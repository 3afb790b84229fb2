# attack: add unused high bits to the flags of clone, to hide a namespace flag
# class: kernel
# layer: seccomp
# expect: held
# also_off: user_namespace

found = []
for flags in (0x10000000 | 1 << 40 | 17, 0x10000000 | 1 << 32 | 17, 0x10000000 | 1 << 63 | 17):
    flags = flags - (1 << 64) if flags >> 63 else flags
    pid, error = call("clone", flags, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    if pid > 0:
        os.waitpid(pid, 0)
        found.append(hex(flags))
finds(found)
