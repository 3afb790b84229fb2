# attack: set a wake-up trigger on the machine's pressure (PSI)
# class: proc
# layer: private_proc
# expect: held

verdict(any(opens("/proc/pressure/" + name, os.O_RDWR) for name in ("cpu", "memory", "io")), "a trigger can be set")
