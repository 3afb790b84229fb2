# The server's own group allows 100 processes: doctor names it.
# run: ok
# doctor: ok says="pids.max"
. "$COMMON"
group pids
echo 100 >"$group/pids.max"
probe
