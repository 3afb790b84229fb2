# attack: have the kernel decode IPsec on a UDP socket
# class: kernel
# layer: seccomp
# expect: held

open_socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for kind in (1, 2, 3):
    try:
        open_socket.setsockopt(socket.IPPROTO_UDP, 100, kind)
    except OSError:
        pass
verdict(open_socket.getsockopt(socket.IPPROTO_UDP, 100) != 0, "decapsulation is on")
