# attack: start threads without end
# class: resources
# layer: process_limit
# expect: held
# limits: processes=32
# raised: processes=400
# fresh: yes

stop = threading.Event()
threading.stack_size(65536)
threads = []
try:
    while len(threads) < 150:
        t = threading.Thread(target=stop.wait, daemon=True)
        t.start()
        threads.append(t)
    result = len(threads)
except RuntimeError:
    result = None
stop.set()
verdict(result, result, "threads")
