# attack: stop, end or kill the first process
# class: agent
# layer: pid_namespace
# expect: held
# unproven: without the namespace the number 1 is the host's own first process; never tried there
# quick: yes

for number in range(1, 65):
    try:
        os.kill(1, number)
    except OSError:
        pass
time.sleep(0.02)
verdict(not os.path.exists("/proc/1") or status_of(1)["State"].split()[0] in "TZX", text_of("/proc/1/stat"))
