# /tmp, /var/tmp and /dev/shm forbid programs, as hardened hosts do.
# run: ok
. "$COMMON"
mount -t tmpfs -o nosuid,nodev,noexec,mode=1777 tmp /tmp
mount -t tmpfs -o nosuid,nodev,noexec,mode=1777 shm /dev/shm
mount --bind "$STAGE" "$STAGE"
probe
