# attack: replace the root mount by pivot_root
# class: kernel
# layer: seccomp
# expect: held
# unproven: without rights over the mount namespace the kernel refuses too
# quick: yes

refused("pivot_root", b"/", b"/")
