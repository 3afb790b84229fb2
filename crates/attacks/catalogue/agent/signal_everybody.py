# attack: send SIGSTOP and real-time signals to the first process
# class: agent
# layer: pid_namespace
# expect: held
# unproven: without the namespace it would reach the host's processes; the suite never tries that

def go():
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGCONT):
        signal.signal(number, signal.SIG_IGN) if number not in (signal.SIGSTOP,) else None
    for sig in (signal.SIGSTOP, signal.SIGRTMIN, signal.SIGRTMAX):
        try:
            os.kill(1, sig)
        except OSError:
            pass
    return open("/proc/1/stat").read().rsplit(")", 1)[1].split()[0]
state = in_child(go)
verdict(state not in ("S", "R"), state)
