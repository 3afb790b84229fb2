# attack: find devices of the machine
# class: devices
# layer: private_root
# expect: held
# quick: yes

finds(n for n in os.listdir("/dev") if n not in ("null", "zero", "full", "random", "urandom", "tty", "fd", "stdin", "stdout", "stderr", "shm", "pts", "ptmx", "mqueue", "core"))
