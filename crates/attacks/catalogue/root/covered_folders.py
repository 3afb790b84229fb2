# attack: list an administrator's files in /usr/local and /usr/src
# class: root
# layer: private_root
# expect: held
# unproven: only some hosts have files there

finds(p + "/" + n for p in ("/usr/src", "/usr/local/etc", "/usr/local/src", "/usr/local/games") if os.path.isdir(p) for n in os.listdir(p) if not n.startswith("python"))
