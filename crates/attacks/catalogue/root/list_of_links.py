# attack: find files of the host through links at the top of the tree
# class: root
# layer: private_root
# expect: held
# unproven: the stand-in for the host's root has the same links

# One leads into the sandbox's own home.
OWN = {"node_modules": "home/user/node_modules"}
links = {n: os.readlink("/" + n) for n in os.listdir("/") if os.path.islink("/" + n)}
finds([n for n, target in links.items() if not target.startswith("usr/") and OWN.get(n) != target])
