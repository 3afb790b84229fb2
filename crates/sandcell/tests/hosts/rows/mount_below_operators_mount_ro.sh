# A file system below a folder that the operator shows (ro).
# run: ok
. "$COMMON"
mount -t tmpfs -o mode=755 srv /srv
folder /srv/project; mkdir /srv/project/data
mount -t tmpfs -o mode=755 data /srv/project/data
folder /srv/project/data/deep
settings <<'S'
[[mount]]
host = "/srv/project"
sandbox = "/mnt/project"
mode = "ro"
S
program <<'P'
assert open('/mnt/project/file').read() == open('/mnt/project/data/deep/file').read()
print(1)
P
probe
