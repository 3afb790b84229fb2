# ulimit -n 20: the limit is named.
# run: refused backend_unavailable cause="20" remedy="ulimit -Hn"
# open: the limit is not named
. "$COMMON"
export WITH="prlimit --nofile=20:20"
probe
