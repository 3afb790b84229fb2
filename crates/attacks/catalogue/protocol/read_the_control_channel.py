# attack: read the frames that the host sends to the driver, so that the driver never gets them
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
