# attack: make a user namespace where system calls are not filtered
# class: kernel
# layer: user_namespace
# expect: held
# also_off: seccomp

verdict(in_child(lambda: list(call("unshare", 0x10000000)))[0] == 0, "one was made")
