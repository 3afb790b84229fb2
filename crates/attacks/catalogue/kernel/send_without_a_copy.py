# attack: keep freed pages of a process in zero-copy sends of a socket
# class: kernel
# layer: seccomp
# expect: held

SO_ZEROCOPY = 60
s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
fails(lambda: s.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1), errno.EPERM)
