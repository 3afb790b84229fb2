# attack: have the kernel wake one at the machine's pressure
# class: proc
# layer: private_proc
# expect: held

verdict(any(opens("/proc/pressure/" + name, os.O_RDWR) for name in ("cpu", "memory", "io")), "a trigger can be set")
