# attack: sleep past the time limit with every signal ignored
# class: resources
# layer: time_limit
# timeout: 1
# expect: timeout
# unproven: the same program ends by itself when it has more time
# fresh: yes

for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
end = time.monotonic() + 60
while time.monotonic() < end:
    try:
        time.sleep(1)
    except BaseException:
        pass
verdict(True, "60 s")
