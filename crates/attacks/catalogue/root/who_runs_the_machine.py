# attack: read the machine's accounts in /etc/passwd
# class: root
# layer: private_root
# expect: held
# quick: yes
# containers: the image has separate users

lines = open("/etc/passwd").read().splitlines()
finds(lines if len(lines) > 4 else [])
