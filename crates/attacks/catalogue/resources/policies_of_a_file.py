# attack: fill the kernel with memory policies of a file's pages
# class: resources
# layer: seccomp
# expect: held

import mmap
path = "/tmp/policies"
with open(path, "wb") as f:
    f.truncate(4096)
with open(path, "r+b") as f:
    pages = mmap.mmap(f.fileno(), 4096)
address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
mask = (ctypes.c_ulong * 16)(1)
result, error = call({"x86_64": 237, "aarch64": 235}[platform.machine()], address, 4096, 2, ctypes.addressof(mask), 1024, 0)
verdict(result == 0 or error not in RULES, result, errno.errorcode.get(error, error))
