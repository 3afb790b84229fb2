# attack: send a datagram to a service on the host's loopback
# class: network
# layer: network_namespace
# expect: held
# unproven: the send succeeds without a receiver; the test checks the listener outside
# outside: untouched

s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
try:
    s.sendto(b"x", ("127.0.0.1", CANARIES["udp"]))
except OSError:
    pass
print("HELD")
