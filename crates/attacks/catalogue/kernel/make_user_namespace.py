# attack: make a user namespace by unshare
# class: kernel
# layer: seccomp
# expect: held
# also_off: user_namespace
# quick: yes

# In a child, which has one thread and may end in a namespace without ids.
result, error = in_child(lambda: list(call("unshare", 0x10000000)))
verdict(result == 0 or error not in RULES, result, errno.errorcode.get(error))
