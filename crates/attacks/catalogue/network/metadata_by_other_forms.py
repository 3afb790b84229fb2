# attack: ask the cloud's metadata service by IPv6 and mapped addresses
# class: network
# layer: network_namespace
# expect: held
# unproven: only some hosts have one

def tries():
    for host in ("fd00:ec2::254", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe"):
        try:
            with socket.socket(socket.AF_INET6) as s:
                s.settimeout(0.5)
                s.connect((host, 80))
                yield host
        except OSError:
            pass
finds(tries())
