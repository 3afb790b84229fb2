# attack: write to read-only program text through /proc/self/mem
# class: proc
# layer: private_root
# expect: held
# unproven: the write changes a private copy; the test checks that the file outside stays the same

path = next(line.split()[-1] for line in open("/proc/self/maps") if "r-xp" in line and line.split()[-1].startswith("/"))
line = next(line for line in open("/proc/self/maps") if "r-xp" in line and line.split()[-1] == path)
start, offset = int(line.split("-")[0], 16), int(line.split()[2], 16)
def go():
    fd = os.open("/proc/self/mem", os.O_RDWR)
    page = os.pread(fd, 16, start)
    os.pwrite(fd, page, start)
    f = os.open(path, os.O_RDONLY)
    return os.pread(f, 16, offset) == page
verdict(in_child(go) is False, "the file differs")
