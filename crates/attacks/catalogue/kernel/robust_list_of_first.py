# attack: learn an address of the first process
# class: kernel
# layer: seccomp
# expect: held
# also_off: hidden_agent

head, size = ctypes.c_void_p(), ctypes.c_size_t()
refused("get_robust_list", 1, ctypes.byref(head), ctypes.byref(size))
