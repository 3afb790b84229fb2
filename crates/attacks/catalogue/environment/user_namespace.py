# attack: be in the host's user namespace
# class: environment
# layer: user_namespace
# expect: held
# containers: the daemon's containers share the host's users, as each result states

here = os.readlink("/proc/self/ns/user")
verdict(here == CANARIES["ns"]["user"] or os.getuid() != 1000, here, os.getuid())
