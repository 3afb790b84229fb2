# attack: read the program's start environment, which still holds unset variables
# class: environment
# layer: empty_environment
# expect: held
# unproven: each program gets a separate environment, independent of the first process's; see first_process

finds(n for n in CANARIES["names"] if n in text_of("/proc/self/environ"))
