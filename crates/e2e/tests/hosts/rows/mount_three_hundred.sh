# Three hundred more mounts, some of them below /usr.
# run: ok
. "$COMMON"
mount -t tmpfs -o mode=755 local /usr/local
mkdir -p "$W/many"; mount -t tmpfs -o mode=755 many "$W/many"
for n in $(seq 290); do mkdir "$W/many/$n"; mount -t tmpfs t "$W/many/$n"; done
for n in $(seq 10); do mkdir "/usr/local/$n"; mount -t tmpfs t "/usr/local/$n"; done
probe
