# attack: fork without end, each child leaving its parent and ignoring signals
# class: resources
# layer: process_limit
# limits: processes=32
# raised: processes=400
# fresh: yes
# expect: held or process_limit

read, write = os.pipe()
os.set_blocking(read, False)
def bomb(depth):
    for number in range(1, 32):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    end = time.monotonic() + 1.2
    while time.monotonic() < end:
        try:
            if os.fork() == 0:
                os.write(write, b".")
                try:
                    os.setsid()
                except OSError:
                    pass
                time.sleep(1.2)
                os._exit(0)
        except OSError:
            time.sleep(0.01)
        else:
            if depth:
                time.sleep(0.002)
    os._exit(0)
if os.fork() == 0:
    bomb(1)
time.sleep(0.8)
alive = len([p for p in os.listdir("/proc") if p.isdigit()])
verdict(alive > 64, alive, "processes")
