# attack: add unused high bits to an address family
# class: sockets
# layer: seccomp
# expect: held

number = {"x86_64": 41, "aarch64": 198}[platform.machine()]
found = []
for fam in (16, 40, 17, 38, 15, 21):
    for high in (1 << 32, 1 << 40, -(1 << 32)):
        result, error = call(number, fam + high, socket.SOCK_DGRAM, 0)
        if result >= 0 or error not in RULES:
            found.append((fam, high, error))
finds(found)
