# No /sys.
# run: ok
. "$COMMON"
mount -t tmpfs -o ro none /sys
probe
