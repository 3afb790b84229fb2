# attack: close the driver's descriptors
# class: protocol
# layer: protocol
# expect: any
# fresh: yes

for fd in (0, 1, 2, 3, 4):
    try:
        os.close(fd)
    except OSError:
        pass
