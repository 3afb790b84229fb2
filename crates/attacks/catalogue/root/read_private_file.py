# attack: read a file that only the server's own user may read
# class: root
# layer: user_namespace
# expect: held
# proof: root
# also_off: private_root, landlock

fails(lambda: open(CANARIES["private_file"]).read())
