# attack: open a world-writable file of the host for writing
# class: root
# layer: private_root
# expect: held
# also_off: landlock

fails(lambda: os.open(CANARIES["open_file"], os.O_WRONLY))
