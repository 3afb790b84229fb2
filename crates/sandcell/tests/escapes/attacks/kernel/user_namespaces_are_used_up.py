# attack: make a user namespace where system calls are not filtered
# class: kernel
# layer: user_namespace
# expect: held
# beside: seccomp

refused("unshare", 0x10000000)
