# attack: take kernel memory in source lists of multicast groups
# class: kernel
# layer: seccomp
# expect: held

found = []
ADDRESS = socket.inet_aton("239.1.1.1") + socket.inet_aton("127.0.0.1")
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
    for option in (38, 39, 41, 43, 46, 48):
        try:
            taken.setsockopt(0, option, ADDRESS + socket.inet_aton("127.0.0.1") + bytes(260))
            found.append((0, option))
        except OSError as error:
            if error.errno != errno.EPERM:
                found.append((0, option, errno.errorcode[error.errno]))
with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as taken:
    for option in (43, 46, 48):
        try:
            taken.setsockopt(41, option, bytes(400))
            found.append((41, option))
        except OSError as error:
            if error.errno != errno.EPERM:
                found.append((41, option, errno.errorcode[error.errno]))
finds(found)
