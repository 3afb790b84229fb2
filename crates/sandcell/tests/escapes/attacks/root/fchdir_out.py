# attack: leave the root through a descriptor of a folder kept open over chroot
# class: root
# layer: seccomp
# expect: held

def go():
    fd = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    result, error = call("chroot", b"/tmp")
    if result < 0:
        raise OSError(error, "chroot")
    os.fchdir(fd)
    return os.listdir("../../../..")
fails(go, errno.EPERM)
