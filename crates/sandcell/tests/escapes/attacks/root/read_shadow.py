# attack: read the host's /etc/shadow
# class: root
# layer: private_root
# expect: held
# beside: user_namespace, landlock
# proof: root
# quick: yes

fails(lambda: open("/etc/shadow").read())
