# attack: make files without end
# class: resources
# layer: disk_limit
# limits: disk=64, inodes=2000
# raised: disk=64, inodes=50000
# fresh: yes
# expect: held or disk_full

made = 0
os.mkdir("/tmp/many")
try:
    while made < 4000:
        os.close(os.open(f"/tmp/many/{made}", os.O_CREAT | os.O_WRONLY))
        made += 1
except OSError:
    pass
verdict(made >= 4000, made)
