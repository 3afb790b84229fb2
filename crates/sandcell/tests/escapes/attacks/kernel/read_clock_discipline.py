# attack: read and change how the clock is corrected
# class: kernel
# layer: seccomp
# expect: held

refused("adjtimex", ctypes.create_string_buffer(256))
