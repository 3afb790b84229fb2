# /proc is read-only.
# run: refused isolation_unavailable cause="proc" remedy="systempaths=unconfined"
# open: the remedy does not name it
. "$COMMON"
mount -o remount,ro,bind /proc
probe
