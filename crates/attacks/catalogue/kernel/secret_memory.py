# attack: make memory that the kernel itself cannot see
# class: kernel
# layer: seccomp
# expect: held
# unproven: this kernel may be started without it, and answers ENOSYS too

refused("memfd_secret", 0)
