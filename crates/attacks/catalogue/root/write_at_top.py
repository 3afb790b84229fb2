# attack: make a file or a folder at the top of the tree
# class: root
# layer: private_root
# expect: held
# unproven: the top of the stand-in for the host's root is just as empty

results = []
for action in (lambda: open("/x", "w"), lambda: os.mkdir("/y"), lambda: os.symlink("a", "/z"), lambda: os.mkdir("/home/other"), lambda: os.mkdir("/mnt/x"), lambda: os.mkdir("/opt/x"), lambda: os.rename("/mnt", "/mnt2")):
    try:
        results.append(repr(action()))
    except OSError:
        pass
finds(results)
