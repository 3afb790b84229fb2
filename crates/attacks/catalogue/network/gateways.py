# attack: connect to usual bridge and gateway addresses
# class: network
# layer: network_namespace
# expect: held
# unproven: only some hosts have them

def tries():
    for host in ("172.17.0.1", "172.18.0.1", "10.0.0.1", "10.0.2.2", "192.168.0.1", "192.168.1.1", "192.168.122.1", "100.100.100.200"):
        for port in (22, 80, 2375, 6443):
            try:
                with socket.socket() as s:
                    s.settimeout(0.05)
                    s.connect((host, port))
                    yield host
            except ConnectionRefusedError:
                yield host
            except OSError:
                pass
finds(tries())
