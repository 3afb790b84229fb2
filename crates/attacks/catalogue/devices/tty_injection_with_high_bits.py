# attack: type into a terminal with TIOCSTI, with high bits added to the request number
# class: devices
# layer: seccomp
# expect: held

master, slave = os.openpty()
codes = []
for number in (0x5412, 0x1_0000_5412, 0xFFFF_FFFF_0000_5412 - (1 << 64), 0x541C, 0x1_0000_541C, 0x5423, 0x7FFF_FFFF_0000_5423):
    ctypes.set_errno(0)
    libc.syscall(ctypes.c_long({"x86_64": 16, "aarch64": 29}[platform.machine()]), ctypes.c_long(slave), ctypes.c_long(number), ctypes.c_char_p(b"x\0\0\0"))
    codes.append(ctypes.get_errno())
os.close(master), os.close(slave)
finds(errno.errorcode.get(c, c) for c in codes if c != errno.EPERM)
