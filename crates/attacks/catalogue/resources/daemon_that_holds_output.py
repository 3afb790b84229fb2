# attack: keep standard output open in a daemon, so that the answer never arrives
# class: resources
# layer: time_limit
# expect: held
# timeout: 3
# unproven: the answer arrives at the end of the cell, even if a process holds the pipe
# fresh: yes

if os.fork() == 0:
    os.setsid()
    time.sleep(60)
    os._exit(0)
print("HELD")
