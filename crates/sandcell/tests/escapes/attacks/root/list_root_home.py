# attack: list /root
# class: root
# layer: private_root
# expect: held
# beside: user_namespace, landlock
# proof: root

fails(lambda: os.listdir("/root"))
