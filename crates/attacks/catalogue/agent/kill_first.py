# attack: stop, end or kill the first process
# class: agent
# layer: pid_namespace
# expect: held
# unproven: without the namespace, process 1 is the host's init; the suite never tries that
# quick: yes

for number in range(1, 65):
    try:
        os.kill(1, number)
    except OSError:
        pass
time.sleep(0.02)
try:
    os.kill(1, 0)
    there = True
except OSError as error:
    # A host may hide other users' processes in /proc, but not that they exist.
    there = error.errno != errno.ESRCH
state = text_of("/proc/1/stat").rpartition(")")[2].split()
verdict(not there or state and state[0] in "TZX", there, state[:1])
