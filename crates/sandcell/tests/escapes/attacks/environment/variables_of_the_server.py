# attack: find variables of the server among one's own
# class: environment
# layer: empty_environment
# expect: held
# unproven: programs get an environment of their own, whatever the first process has; see first_process
# quick: yes

finds(n for n in CANARIES["names"] if n in os.environ)
