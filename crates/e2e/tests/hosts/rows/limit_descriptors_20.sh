# ulimit -n 20: the limit is named.
# run: refused backend_unavailable cause="20" remedy="ulimit -Hn"
. "$COMMON"
export WITH="prlimit --nofile=20:20"
probe
