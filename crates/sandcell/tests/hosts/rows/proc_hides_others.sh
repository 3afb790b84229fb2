# Others' processes are hidden (hidepid=2).
# run: ok
. "$COMMON"
mount -o remount,hidepid=2 /proc
probe
