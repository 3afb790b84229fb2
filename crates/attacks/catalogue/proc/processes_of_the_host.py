# attack: see processes of the host
# class: proc
# layer: private_proc
# expect: held
# quick: yes

finds(str(CANARIES["pid"]) for _ in [0] if os.path.exists(f"/proc/{CANARIES['pid']}/stat") and CANARIES["program"] in text_of(f"/proc/{CANARIES['pid']}/stat"))
