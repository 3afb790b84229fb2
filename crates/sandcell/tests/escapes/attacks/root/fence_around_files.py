# attack: read a file of the host where the root is not a private one
# class: root
# layer: landlock
# expect: held
# beside: private_root

fails(lambda: open(CANARIES["secret_file"]).read())
