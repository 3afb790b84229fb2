# /usr/local is a file system of its own.
# run: ok
# open: a mount below a shown tree still fails
. "$COMMON"
mount --bind /usr/local /usr/local
probe
