# attack: put a file below /usr
# class: root
# layer: private_root
# expect: held
# also_off: user_namespace, landlock
# proof: root
# quick: yes

fails(lambda: os.open("/usr", os.O_TMPFILE | os.O_WRONLY))
