# attack: be in the server's session or have its terminal
# class: environment
# layer: pid_namespace
# expect: held
# unproven: each program starts in a new session

def terminal():
    try:
        os.close(os.open("/dev/tty", os.O_RDWR))
        return True
    except OSError:
        return False
verdict(os.getsid(0) == 0 or terminal(), os.getsid(0))
