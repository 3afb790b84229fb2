# attack: talk to the kernel by netlink
# class: sockets
# layer: seccomp
# expect: held
# quick: yes

family(16, socket.SOCK_RAW)
