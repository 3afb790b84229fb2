# lxcfs mounts files on /proc: a new /proc cannot be mounted in a user namespace, and the mount is named.
# run: refused isolation_unavailable cause="private_proc" cause="/proc/meminfo"
. "$COMMON"
cp /proc/meminfo "$W/meminfo"
mount --bind "$W/meminfo" /proc/meminfo
probe
