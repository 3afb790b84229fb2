# attack: be in the host's process namespace
# class: environment
# layer: pid_namespace
# expect: held
# also_off: private_proc
# proof: root

here = os.readlink("/proc/self/ns/pid")
verdict(here == CANARIES["ns"]["pid"], here)
