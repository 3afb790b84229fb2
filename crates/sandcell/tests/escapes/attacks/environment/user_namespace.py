# attack: be in the host's user namespace
# class: environment
# layer: user_namespace
# expect: held

here = os.readlink("/proc/self/ns/user")
verdict(here == LURE["ns"]["user"] or os.getuid() != 1000, here, os.getuid())
