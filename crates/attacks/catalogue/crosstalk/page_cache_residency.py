# attack: read by mincore the list of cached pages of a shared file
# class: crosstalk
# layer: private_root
# expect: held
# unproven: the kernel answers only users who may write the file

import mmap
fd = os.open("/usr/bin/env", os.O_RDONLY)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
address = libc.mmap(None, 16384, 1, 1, fd, 0)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
vector = ctypes.create_string_buffer(4)
libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(16384), vector)
verdict(b"\0" in vector.raw, vector.raw)
