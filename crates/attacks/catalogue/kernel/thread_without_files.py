# attack: start a thread with a separate descriptor table
# class: kernel
# layer: seccomp
# expect: held

# CLONE_THREAD alone: the kernel would find it invalid, the filter has to be first.
refused("clone", 0x10000, 0, 0, 0, 0)
