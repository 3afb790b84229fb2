# attack: read what the host sends to the driver, and never let it through
# class: protocol
# layer: protocol
# timeout: 2
# expect: any
# fresh: yes

def steal():
    while True:
        os.read(3, 65536)
threading.Thread(target=steal, daemon=True).start()
time.sleep(0.1)
print("HELD")
