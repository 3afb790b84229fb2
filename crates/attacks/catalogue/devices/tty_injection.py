# attack: type into a terminal with TIOCSTI
# class: devices
# layer: seccomp
# expect: held
# quick: yes

import fcntl
master, slave = os.openpty()
def go():
    pid = os.fork()
    if pid == 0:
        os.setsid()
        fcntl.ioctl(slave, 0x540E, 0)
        try:
            fcntl.ioctl(slave, 0x5412, b"x")
            os._exit(0)
        except OSError as error:
            os._exit(1 if error.errno == errno.EPERM else 2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
code = go()
os.close(master), os.close(slave)
verdict(code != 1, "exit", code)
