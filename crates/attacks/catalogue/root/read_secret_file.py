# attack: read a world-readable file of the host by its path
# class: root
# layer: private_root
# expect: held
# also_off: landlock

fails(lambda: open(CANARIES["secret_file"]).read())
