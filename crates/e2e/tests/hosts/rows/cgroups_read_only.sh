# Control groups can be seen and not changed, as in containers.
# run: ok
. "$COMMON"
for point in $(awk '$3 ~ /^cgroup/ { print $2 }' /proc/mounts); do mount -o remount,ro,bind "$point"; done
probe
