# A pseudo file system below /usr is left out, and doctor names it.
# run: ok
# doctor: ok says="/usr/local/odd"
. "$COMMON"
mount -t tmpfs -o mode=755 local /usr/local
mkdir /usr/local/odd
mount -t proc proc /usr/local/odd
program <<'P'
import os
print(1 + (os.path.isdir('/usr/local/odd') and len(os.listdir('/usr/local/odd'))))
P
probe
