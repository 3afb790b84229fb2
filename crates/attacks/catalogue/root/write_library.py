# attack: open the C library and a loaded module for writing
# class: root
# layer: private_root
# expect: held
# also_off: user_namespace, landlock
# proof: root

path = next(line.split()[-1] for line in open("/proc/self/maps") if "libc" in line and line.split()[-1].startswith("/"))
fails(lambda: os.open(path, os.O_WRONLY))
