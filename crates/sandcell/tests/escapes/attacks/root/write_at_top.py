# attack: make a file or a folder at the top of the tree
# class: root
# layer: private_root
# expect: held
# unproven: the stand-in's top is the same empty one

results = []
for action in (lambda: open("/x", "w"), lambda: os.mkdir("/y"), lambda: os.symlink("a", "/z"), lambda: os.mkdir("/home/other"), lambda: os.mkdir("/mnt/x"), lambda: os.mkdir("/opt/x"), lambda: os.rename("/mnt", "/mnt2")):
    try:
        results.append(repr(action()))
    except OSError:
        pass
finds(results)
