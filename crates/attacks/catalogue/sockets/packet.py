# attack: read packets (AF_PACKET)
# class: sockets
# layer: seccomp
# expect: held
# unproven: without CAP_NET_RAW the kernel refuses too
# quick: yes

family(17, socket.SOCK_RAW)
