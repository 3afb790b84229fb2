# attack: find files of the host through links at the top of the tree
# class: root
# layer: private_root
# expect: held
# unproven: the stand-in for the host's root has the same links

top = [n for n in os.listdir("/") if os.path.islink("/" + n) and not os.readlink("/" + n).startswith(("usr/", "home/user/"))]
finds(top)
