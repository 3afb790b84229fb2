# attack: read the first process's memory by process_vm_readv
# class: agent
# layer: hidden_agent
# expect: held
# also_off: seccomp
# quick: yes

line = text_of("/proc/1/maps").splitlines()
start = int(line[0].split("-")[0], 16) if line else 0x400000
buffer = ctypes.create_string_buffer(8)
local = ctypes.create_string_buffer(struct.pack("QQ", ctypes.addressof(buffer), 8))
remote = ctypes.create_string_buffer(struct.pack("QQ", start, 8))
result, error = call("process_vm_readv", 1, local, 1, remote, 1, 0)
verdict(result > 0, bytes(buffer))
