# attack: call prlimit with a process number other than 0, even the caller's
# class: agent
# layer: seccomp
# expect: held

refused("prlimit64", os.getpid(), 7, 0, ctypes.create_string_buffer(16))
