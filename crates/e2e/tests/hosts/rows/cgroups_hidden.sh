# No control group is mounted: limits are watched.
# run: ok
. "$COMMON"
mount -t tmpfs -o ro none /sys/fs/cgroup
probe
