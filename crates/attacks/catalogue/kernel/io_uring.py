# attack: set up io_uring
# class: kernel
# layer: seccomp
# expect: held
# quick: yes

refused("io_uring_setup", 1, 0)
