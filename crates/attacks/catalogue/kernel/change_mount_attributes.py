# attack: clear read-only by mount_setattr
# class: kernel
# layer: seccomp
# expect: held
# unproven: without rights over the mount namespace the kernel refuses too

refused("mount_setattr", -100, b"/usr", 0, struct.pack("QQQQ", 0, 1, 0, 0), 32)
