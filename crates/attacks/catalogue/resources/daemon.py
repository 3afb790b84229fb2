# attack: leave a process behind after the answer
# class: resources
# layer: pid_namespace
# expect: held
# fresh: yes
# unproven: the test checks whether it lives after the sandbox is closed
# outside: gone

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in range(1, 32):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
        os.execv("/bin/sleep", ["/bin/sleep", CANARIES["marker"]])
    os._exit(0)
os.wait()
print("HELD")
