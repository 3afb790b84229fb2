# attack: stop all processes of the program, so that none can answer
# class: resources
# layer: time_limit
# timeout: 1
# expect: timeout
# unproven: a stopped program never ends by itself
# fresh: yes

os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(60)
verdict(True, "60 s")
