# attack: list /root
# class: root
# layer: private_root
# expect: held
# also_off: user_namespace, landlock
# proof: root
# containers: it belongs to the image and holds nothing of the host

fails(lambda: os.listdir("/root"))
