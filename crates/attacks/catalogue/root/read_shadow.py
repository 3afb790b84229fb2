# attack: read the host's /etc/shadow
# class: root
# layer: private_root
# expect: held
# also_off: user_namespace, landlock
# proof: root
# quick: yes

fails(lambda: open("/etc/shadow").read())
