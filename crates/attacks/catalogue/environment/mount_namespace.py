# attack: be in the host's mount namespace
# class: environment
# layer: mount_namespace
# expect: held
# unproven: nothing can be mounted without it, so no sandbox is made

here = os.readlink("/proc/self/ns/mnt")
verdict(here == CANARIES["ns"]["mnt"], here)
