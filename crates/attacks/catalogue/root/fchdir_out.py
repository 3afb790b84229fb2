# attack: leave the root through a descriptor of a folder kept open over chroot
# class: root
# layer: seccomp
# expect: held
# unproven: without CAP_SYS_CHROOT the kernel refuses too

def go():
    fd = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    result, error = call("chroot", b"/tmp")
    if result < 0:
        raise OSError(error, "chroot")
    os.fchdir(fd)
    return os.listdir("../../../..")
fails(go, errno.EPERM)
