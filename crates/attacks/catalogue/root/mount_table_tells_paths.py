# attack: learn paths of the host from the mount table
# class: root
# layer: private_root
# expect: held
# also_off: private_proc
# quick: yes
# containers: the mount table shows the daemon's mounts, with its folder
# weaker: folders that an ordinary user cannot show through an overlay are bound, and the layer's report states that their paths are visible

# Where a tree stands inside is its path outside, as the programs in it expect; that alone is shown on purpose.
told = []
for line in open("/proc/self/mountinfo", errors="replace"):
    fields = line.split(" ")
    told.append(" ".join(fields[:4] + fields[5:]))
for name in ("mounts", "mountstats"):
    for line in open("/proc/self/" + name, errors="replace"):
        words = line.split(" ")
        at = words.index("on") + 2 if "on" in words else 2
        told.append(" ".join([word for number, word in enumerate(words) if number != at - 1]))
text = "\n".join(told)
finds([p for p in CANARIES["paths"] if p in text] + [w for w in ("/dev/vd", "/dev/sd", "/dev/nvme", "lowerdir=/usr", "upperdir=/home", " - cgroup") if w in text])
