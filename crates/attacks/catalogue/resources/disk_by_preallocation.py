# attack: fill the disk by reserving blocks
# class: resources
# layer: disk_limit
# limits: disk=16
# raised: disk=256
# fresh: yes
# expect: held or disk_full

def go():
    fd = os.open("/tmp/reserved", os.O_CREAT | os.O_RDWR)
    try:
        os.posix_fallocate(fd, 0, 100 << 20)
    finally:
        os.close(fd)
        os.unlink("/tmp/reserved")
fails(go)
