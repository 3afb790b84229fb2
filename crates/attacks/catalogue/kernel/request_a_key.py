# attack: have the kernel start a helper for a key
# class: kernel
# layer: seccomp
# expect: held

refused("request_key", b"user", b"escape", 0, 0)
