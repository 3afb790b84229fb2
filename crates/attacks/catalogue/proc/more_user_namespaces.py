# attack: find that more user namespaces may be made below this one
# class: proc
# layer: user_namespace
# expect: held
# containers: the number is hidden, and the system-call filter refuses to make one

verdict(open("/proc/sys/user/max_user_namespaces").read().strip() != "0", open("/proc/sys/user/max_user_namespaces").read())
