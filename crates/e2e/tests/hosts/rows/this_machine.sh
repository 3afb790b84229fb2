# This machine as it is.
# run: ok
. "$COMMON"
probe
