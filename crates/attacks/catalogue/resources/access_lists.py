# attack: fill the kernel with access lists of files
# class: resources
# layer: seccomp
# expect: held

entry = lambda tag, rights, owner: struct.pack("<HHI", tag, rights, owner)
none = 0xFFFFFFFF
access = struct.pack("<I", 2) + entry(1, 6, none) + entry(2, 4, 1000) + entry(4, 4, none) + entry(16, 6, none) + entry(32, 4, none)
os.mkdir("/tmp/listed")
got = []
for name in ("system.posix_acl_access", "system.posix_acl_default", "user.word"):
    try:
        os.setxattr("/tmp/listed", name, access)
        got.append(name)
    except OSError:
        pass
finds(got)
