# attack: make a filter that hands calls to another process
# class: kernel
# layer: no_new_privileges
# expect: held
# unproven: a filter acts only on the caller's calls; this shows that it cannot allow a refused call

program = struct.pack("HBBI", 6, 0, 0, 0x7FFF0000)
memory = ctypes.create_string_buffer(program)
fprog = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 1, ctypes.addressof(memory)))
def go():
    call("seccomp", 1, 0, fprog)
    return list(call("unshare", 0x10000000)) + list(call("mount", b"none", b"/tmp", b"tmpfs", 0, 0))
got = in_child(go)
verdict(not isinstance(got, list) or got[0] >= 0 or got[2] >= 0, got)
