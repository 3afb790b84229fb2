# attack: learn paths of the host from the mount table
# class: root
# layer: private_root
# expect: held
# beside: private_proc
# quick: yes

text = "".join(open("/proc/self/" + n).read() for n in ("mountinfo", "mounts", "mountstats"))
finds([p for p in LURE["paths"] if p in text] + [w for w in ("/dev/vd", "/dev/sd", "/dev/nvme", "lowerdir=/usr", "upperdir=/home", " - cgroup") if w in text])
