# attack: install seccomp filters, whose machine code counts against a limit of the whole machine
# class: kernel
# layer: seccomp
# expect: held

# A filter that lets everything through, and not a small one: it would take some 20 KiB of machine code.
program = struct.pack("HBBI", 0, 0, 0, 0) * 1000 + struct.pack("HBBI", 6, 0, 0, 0x7FFF0000)
memory = ctypes.create_string_buffer(program, len(program))
fprog = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 1001, ctypes.addressof(memory)))
def go():
    libc.prctl(38, 1, 0, 0, 0)
    by_prctl = libc.prctl(22, 2, fprog, 0, 0)
    error = ctypes.get_errno()
    return [by_prctl, error, *call("seccomp", 1, 0, fprog), *call("seccomp", 1, 1, fprog)]
got = in_child(go)
# A kernel without filters answers so, and programs go on without one.
verdict(got != [-1, errno.EINVAL] * 3, got)
