# attack: make hard links without end
# class: resources
# layer: disk_limit
# limits: disk=64, inodes=2000
# raised: disk=64, inodes=50000
# fresh: yes
# expect: held or disk_full

open("/tmp/origin", "w").close()
os.mkdir("/tmp/links")
made = 0
try:
    while made < 4000:
        os.link("/tmp/origin", f"/tmp/links/{made}")
        made += 1
except OSError:
    pass
verdict(made >= 4000, made)
