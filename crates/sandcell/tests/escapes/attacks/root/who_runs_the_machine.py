# attack: learn from /etc/passwd who has accounts here
# class: root
# layer: private_root
# expect: held
# quick: yes
# containers: the image has users of its own

lines = open("/etc/passwd").read().splitlines()
finds(lines if len(lines) > 4 else [])
