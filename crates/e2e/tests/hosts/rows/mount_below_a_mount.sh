# Mounts below mounts below /usr.
# run: ok
. "$COMMON"
mount -t tmpfs -o mode=755 one /usr/local
mkdir /usr/local/two; mount -t tmpfs -o mode=755 two /usr/local/two
mkdir /usr/local/two/three; mount -t tmpfs -o mode=755 three /usr/local/two/three
folder /usr/local/two/three/four
program <<'P'
print(len(open('/usr/local/two/three/four/file').read()) - 4)
P
probe
