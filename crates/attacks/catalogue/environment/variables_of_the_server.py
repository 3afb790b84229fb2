# attack: find variables of the server in the program's environment
# class: environment
# layer: empty_environment
# expect: held
# unproven: each program gets a separate environment, independent of the first process's; see first_process
# quick: yes

finds(n for n in CANARIES["names"] if n in os.environ)
