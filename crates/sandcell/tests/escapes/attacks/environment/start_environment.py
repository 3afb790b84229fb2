# attack: read one's own start environment, which stays when variables are unset
# class: environment
# layer: empty_environment
# expect: held
# unproven: programs get an environment of their own, whatever the first process has; see first_process

finds(n for n in CANARIES["names"] if n in text_of("/proc/self/environ"))
