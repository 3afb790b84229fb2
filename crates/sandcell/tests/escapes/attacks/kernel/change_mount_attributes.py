# attack: clear read-only by mount_setattr
# class: kernel
# layer: seccomp
# expect: held

refused("mount_setattr", -100, b"/usr", 0, struct.pack("QQQQ", 0, 1, 0, 0), 32)
