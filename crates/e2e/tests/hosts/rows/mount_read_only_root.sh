# The root file system is read-only, but for the data folder.
# run: ok
. "$COMMON"
mount --bind "$STAGE" "$STAGE"
mount -o remount,ro,bind /
probe
