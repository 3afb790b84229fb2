# Runs inside the installer's sandbox: writes the files below a folder to standard output. A record is kind (`F`), length
# of the path (u32), 1 if it is executable, size (u64), path, bytes; the last one is `E` and the number of files (u32).
import os, stat, struct, sys

root = sys.argv[1]
out = sys.stdout.buffer
count = 0
for folder, folders, names in os.walk(root):
    folders.sort()
    for name in sorted(names):
        path = os.path.join(folder, name)
        if name == ".lock" and folder == root:
            continue  # uv's own
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode):
            sys.stderr.write("left out, because it is not a regular file: %r\n" % os.path.relpath(path, root))
            continue
        inner = os.fsencode(os.path.relpath(path, root))
        out.write(b"F" + struct.pack("<IBQ", len(inner), found.st_mode >> 6 & 1, found.st_size) + inner)
        left = found.st_size
        with open(path, "rb") as file:
            while left:
                data = file.read(min(left, 1 << 18))
                if not data:
                    sys.exit("a file shrank while it was read")
                out.write(data)
                left -= len(data)
        count += 1
out.write(b"E" + struct.pack("<I", count))
out.flush()
