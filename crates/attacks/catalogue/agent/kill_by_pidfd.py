# attack: kill the first process through a pidfd
# class: agent
# layer: pid_namespace
# expect: held
# unproven: without the namespace, process 1 is the host's init; the suite never tries that

fd = os.pidfd_open(1)
for number in (9, 19, 15):
    try:
        signal.pidfd_send_signal(fd, number)
    except OSError:
        pass
time.sleep(0.02)
verdict(not os.path.exists("/proc/1") or status_of(1)["State"].split()[0] in "TZX", text_of("/proc/1/stat"))
