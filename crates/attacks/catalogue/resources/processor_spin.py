# attack: compute without end
# class: resources
# layer: time_limit
# timeout: 1
# expect: timeout
# unproven: the same program ends by itself when it has more time
# fresh: yes

end = time.monotonic() + 60
while time.monotonic() < end:
    pass
verdict(True, "60 s")
