# attack: ask for more memory than any machine has
# class: resources
# layer: resource_limits
# expect: held
# unproven: the kernel's own accounting may refuse it too

def go():
    return len(bytearray(1 << 40))
try:
    go()
    verdict(True, "1 TiB was given")
except MemoryError:
    verdict(False)
