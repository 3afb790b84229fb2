# No /proc at all.
# run: refused internal cause="/proc"
# serve: refused backend_unavailable cause="/proc"
# doctor: refused internal cause="/proc"
. "$COMMON"
mount -t tmpfs -o ro none /proc
probe
