# attack: put a file below /etc
# class: root
# layer: private_root
# expect: held
# also_off: user_namespace, landlock
# proof: root
# quick: yes

fails(lambda: os.open("/etc", os.O_TMPFILE | os.O_WRONLY))
