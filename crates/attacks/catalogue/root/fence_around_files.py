# attack: read a file of the host without a private root
# class: root
# layer: landlock
# expect: held
# also_off: private_root

fails(lambda: open(CANARIES["secret_file"]).read())
