# attack: signal a process of the other sandbox by every number
# class: crosstalk
# layer: pid_namespace
# expect: held
# unproven: without the namespace it would reach the host's processes; never tried there

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
