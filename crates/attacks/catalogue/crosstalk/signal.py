# attack: send a signal to every process number, to reach the other sandbox
# class: crosstalk
# layer: pid_namespace
# expect: held
# unproven: without the namespace it would reach the host's processes; the suite never tries that

# in: a
got = []
signal.signal(signal.SIGUSR2, lambda *_: got.append(1))
# in: b
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
for pid in range(2, 4096):
    try:
        if pid != os.getpid():
            os.kill(pid, signal.SIGUSR2)
    except OSError:
        pass
# in: a
time.sleep(0.05)
verdict(got, "the signal came")
