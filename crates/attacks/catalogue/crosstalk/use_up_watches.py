# attack: use up the inotify instances that all sandboxes of an owner share
# class: crosstalk
# layer: user_namespace
# expect: held
# outside: room

# in: a
held_open = []
while len(held_open) < 2000:
    fd = libc.inotify_init1(os.O_CLOEXEC)
    if fd < 0:
        break
    held_open.append(fd)
print(len(held_open))
# in: b
fd = libc.inotify_init1(0)
verdict(fd < 0, "no instance is left for the other sandbox")
