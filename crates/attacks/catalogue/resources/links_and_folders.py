# attack: make folders and links without end
# class: resources
# layer: disk_limit
# limits: disk=64, inodes=2000
# raised: disk=64, inodes=50000
# fresh: yes
# expect: held or disk_full

made = 0
os.mkdir("/dev/shm/many")
try:
    while made < 4000:
        os.mkdir(f"/dev/shm/many/d{made}") if made % 2 else os.symlink("x", f"/dev/shm/many/l{made}")
        made += 1
except OSError:
    pass
verdict(made >= 4000, made)
