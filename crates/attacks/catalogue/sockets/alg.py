# attack: use the kernel's ciphers (AF_ALG)
# class: sockets
# layer: seccomp
# expect: held
# unproven: this kernel may lack the family, and answers EAFNOSUPPORT too
# quick: yes

family(38, socket.SOCK_SEQPACKET)
