# Only version 2, with no controller to hand on.
# run: ok
. "$COMMON"
mount -t tmpfs cgroup /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
probe
