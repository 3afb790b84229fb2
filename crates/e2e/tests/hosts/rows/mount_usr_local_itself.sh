# /usr/local is a file system of its own.
# run: ok
. "$COMMON"
mount --bind /usr/local /usr/local
probe
