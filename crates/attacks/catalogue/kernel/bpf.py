# attack: load a program into the kernel
# class: kernel
# layer: seccomp
# expect: held
# unproven: kernel.unprivileged_bpf_disabled refuses it on most hosts too
# quick: yes

refused("bpf", 0, 0, 0)
