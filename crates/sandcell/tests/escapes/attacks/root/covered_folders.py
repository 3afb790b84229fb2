# attack: look into what an administrator put below /usr/local
# class: root
# layer: private_root
# expect: held
# unproven: whether there is anything differs from machine to machine

finds(p + "/" + n for p in ("/usr/src", "/usr/local/etc", "/usr/local/src", "/usr/local/games") if os.path.isdir(p) for n in os.listdir(p) if not n.startswith("python"))
