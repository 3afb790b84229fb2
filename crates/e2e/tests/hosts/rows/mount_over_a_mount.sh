# Two file systems on the same folder: the upper one counts.
# run: ok
. "$COMMON"
mount -t tmpfs -o mode=755 one /usr/local
folder /usr/local/lower
mount -t tmpfs -o mode=755 two /usr/local
folder /usr/local/upper
program <<'P'
import os
assert not os.path.exists('/usr/local/lower')
print(len(open('/usr/local/upper/file').read()) - 4)
P
probe
