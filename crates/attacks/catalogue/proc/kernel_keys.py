# attack: read the kernel's list of keys
# class: proc
# layer: private_proc
# expect: held
# unproven: the kernel lists only the reader's keys

finds(p for p in ("keys", "key-users") if text_of("/proc/" + p))
