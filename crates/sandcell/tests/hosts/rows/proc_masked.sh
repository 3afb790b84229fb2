# Container engines mask parts of /proc.
# run: refused isolation_unavailable cause="private_proc" remedy="systempaths=unconfined"
# open: the mount is not named
. "$COMMON"
mount -t tmpfs -o ro mask /proc/fs
mount --bind /dev/null /proc/kcore
probe
