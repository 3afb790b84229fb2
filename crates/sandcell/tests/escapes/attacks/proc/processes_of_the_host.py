# attack: see processes of the host
# class: proc
# layer: private_proc
# expect: held
# quick: yes

finds(str(LURE["pid"]) for _ in [0] if os.path.exists(f"/proc/{LURE['pid']}/stat") and LURE["program"] in text_of(f"/proc/{LURE['pid']}/stat"))
