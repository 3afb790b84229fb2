# /proc is read-only.
# run: refused isolation_unavailable cause="proc" remedy="systempaths=unconfined"
. "$COMMON"
mount -o remount,ro,bind /proc
probe
