# attack: make system calls by the 32-bit entry (int 0x80)
# class: kernel
# layer: seccomp
# expect: held
# needs: x86_64

import mmap
def go():
    code = b"\xb8\x14\x00\x00\x00\xcd\x80\xc3"  # mov eax, 20 (getpid); int 0x80; ret
    memory = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(code)
    return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))()
pid = os.fork()
if pid == 0:
    os._exit(0 if go() == os.getpid() else 3)
status = os.waitpid(pid, 0)[1]
verdict(not os.WIFSIGNALED(status), "it ended with", status)
