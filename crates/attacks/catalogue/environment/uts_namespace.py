# attack: be in the host's UTS namespace
# class: environment
# layer: uts_namespace
# expect: held

here = os.readlink("/proc/self/ns/uts")
verdict(here == CANARIES["ns"]["uts"], here)
