# attack: mount by the new calls
# class: kernel
# layer: seccomp
# expect: held
# unproven: without rights over the mount namespace the kernel refuses too
# quick: yes

refused("fsopen", b"tmpfs", 0)
