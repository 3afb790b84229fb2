# attack: list /run, where the host's sockets are
# class: root
# layer: private_root
# expect: held
# also_off: landlock
# quick: yes

fails(lambda: os.listdir("/run") or open("/nothing"))
