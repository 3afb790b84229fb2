# attack: set MD5 keys on TCP connections, whose memory the kernel charges to no process
# class: kernel
# layer: seccomp
# expect: held

given = []
for option in (14, 32):
    end = socket.socket()
    peer = struct.pack("=HH4s120x", socket.AF_INET, 0, socket.inet_aton("127.0.0.9"))
    try:
        end.setsockopt(socket.IPPROTO_TCP, option, peer + struct.pack("=BBHi80s", 0, 0, 4, 0, b"abcd"))
        given.append(option)
    except OSError:
        pass
verdict(given, "options:", given)
