# attack: find other people's homes
# class: root
# layer: private_root
# expect: held
# unproven: the stand-in for the host's root shows no /home
# quick: yes

finds(set(os.listdir("/home")) - {"user"})
