# attack: attach a socket filter, whose machine code counts against a limit of the whole machine
# class: kernel
# layer: seccomp
# expect: held

ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
nothing = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0), 8)
program = struct.pack("HxxxxxxP", 1, ctypes.addressof(nothing))
for option in (26, 51):
    try:
        theirs.setsockopt(socket.SOL_SOCKET, option, program)
    except OSError:
        pass
# A filter that lets nothing through would keep this from arriving.
theirs.settimeout(1)
try:
    ours.settimeout(1)
    ours.send(b"x")
    arrived = theirs.recv(1) == b"x"
except OSError:
    arrived = False
verdict(not arrived, "the filter is in force")
