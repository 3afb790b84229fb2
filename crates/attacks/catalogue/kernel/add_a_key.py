# attack: add a key, which would outlive the sandbox
# class: kernel
# layer: seccomp
# expect: held
# quick: yes

refused("add_key", b"user", b"escape", b"x", 1, -3)
