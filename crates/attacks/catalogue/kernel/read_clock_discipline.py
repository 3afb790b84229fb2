# attack: read and change the clock correction (adjtimex)
# class: kernel
# layer: seccomp
# expect: held

refused("adjtimex", ctypes.create_string_buffer(256))
