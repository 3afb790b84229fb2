# A file system below /usr/local, as GPU hosts have: its files are seen, read-only.
# run: ok
. "$COMMON"
mkdir -p /usr/local
mount -t tmpfs -o mode=755 local /usr/local
folder /usr/local/bin; mkdir /usr/local/nvidia
mount -t tmpfs -o mode=755 nvidia /usr/local/nvidia
folder /usr/local/nvidia/lib64
program <<'P'
assert open('/usr/local/nvidia/lib64/file').read() == 'here\n'
try:
    open('/usr/local/nvidia/lib64/file', 'a')
except OSError:
    print(1)
P
probe
