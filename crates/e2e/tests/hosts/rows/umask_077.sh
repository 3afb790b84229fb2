# A strict umask.
# run: ok
. "$COMMON"
umask 077
probe
