# A file system below a folder that the operator shows, read-only and as a private copy.
# run: ok
. "$COMMON"
mount -t tmpfs -o mode=755 srv /srv
folder /srv/project; mkdir /srv/project/data
mount -t tmpfs -o mode=755 data /srv/project/data
folder /srv/project/data/deep
settings <<'S'
[[mount]]
host = "/srv/project"
sandbox = "/mnt/ro"
mode = "ro"
[[mount]]
host = "/srv/project"
sandbox = "/mnt/cow"
mode = "cow"
S
program <<'P'
for mode in 'ro', 'cow':
    assert open(f'/mnt/{mode}/file').read() == open(f'/mnt/{mode}/data/deep/file').read()
print(1)
P
probe
