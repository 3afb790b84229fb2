# attack: stop the program while its children continue to work
# class: resources
# layer: time_limit
# timeout: 1
# expect: timeout
# unproven: a stopped program never ends by itself
# fresh: yes
# outside: no spinner

for _ in range(3):
    if os.fork() == 0:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            pass
        os._exit(0)
os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(60)
