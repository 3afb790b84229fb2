# attack: list /root
# class: root
# layer: private_root
# expect: held
# beside: user_namespace, landlock
# proof: root
# containers: it is the image's own, with nothing of the host's in it

fails(lambda: os.listdir("/root"))
