# attack: read /sys
# class: root
# layer: private_root
# expect: held
# beside: landlock
# quick: yes

finds(os.listdir("/sys") if os.path.isdir("/sys") else [])
