# attack: pass a word to the other sandbox in the host name
# class: crosstalk
# layer: seccomp
# expect: held
# unproven: without CAP_SYS_ADMIN the kernel refuses too

# in: a
call("sethostname", b"note", 4)
# in: b
verdict(socket.gethostname() != "sandcell", socket.gethostname())
