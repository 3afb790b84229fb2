# attack: climb above the root with many dots
# class: root
# layer: private_root
# expect: held
# unproven: the kernel stops at any root; this shows that the root is the sandbox's

finds(set(os.listdir("/" + "../" * 64)) - set(os.listdir("/")))
