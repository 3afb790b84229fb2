# attack: talk to the hypervisor (AF_VSOCK)
# class: sockets
# layer: seccomp
# expect: held
# quick: yes

family(40, socket.SOCK_STREAM)
