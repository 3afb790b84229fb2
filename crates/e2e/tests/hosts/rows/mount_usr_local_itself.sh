# /usr/local is a separate file system.
# run: ok
. "$COMMON"
mount --bind /usr/local /usr/local
probe
