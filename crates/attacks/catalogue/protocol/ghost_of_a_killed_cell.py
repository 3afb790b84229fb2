# attack: print into the next cell's output from a thread and a child
# class: protocol
# layer: protocol
# expect: any
# fresh: yes

def later():
    time.sleep(0.2)
    print("[ok 1 ms]", flush=True)
threading.Thread(target=later, daemon=True).start()
print("HELD")
