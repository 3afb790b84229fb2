# attack: take flow labels from the single table of the machine
# class: kernel
# layer: seccomp
# expect: held

taken = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
request = struct.pack("16s I B B H H H I", b"\0" * 15 + b"\1", 0, 0, 255, 1, 0, 60, 0)
try:
    taken.setsockopt(41, 32, request)
except OSError:
    pass
with open("/proc/net/ip6_flowlabel") as table:
    labels = table.read().splitlines()[1:]
verdict(labels, "labels:", labels)
