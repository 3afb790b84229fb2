# attack: find descriptors beyond the standard three in a started program
# class: environment
# layer: private_root
# expect: held
# unproven: descriptors are closed when a program starts; nothing can be left out

text = subprocess.run(["/bin/sh", "-c", "ls /proc/self/fd"], capture_output=True, text=True, close_fds=False).stdout
finds(fd for fd in text.split() if fd not in "0123")
