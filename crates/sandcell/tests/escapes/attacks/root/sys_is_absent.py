# attack: read /sys
# class: root
# layer: private_root
# expect: held
# beside: landlock
# quick: yes
# containers: its folders are there and empty

finds(os.listdir("/sys") if os.path.isdir("/sys") else [])
