# ulimit -n 20: the limit is named.
# run: refused limit_reached cause="20" remedy="ulimit -n"
# open: the limit is not named
. "$COMMON"
export WITH="prlimit --nofile=20:20"
probe
