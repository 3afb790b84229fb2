# attack: make pipes that hold sixteen times their charged size
# class: resources
# layer: seccomp
# needs: user
# expect: held

import fcntl

read, write = os.pipe()
usual = fcntl.fcntl(write, fcntl.F_GETPIPE_SZ)
try:
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 1 << 20)
except OSError as error:
    print(error)
size = fcntl.fcntl(write, fcntl.F_GETPIPE_SZ)
# Smaller ones are taken.
fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, usual // 2)
verdict(size > usual, "it has", size, "bytes")
