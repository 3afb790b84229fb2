# The server's own group allows 100 processes: doctor names it.
# run: ok
# doctor: ok says="pids.max"
# open: the outer limit is not named
. "$COMMON"
group pids
echo 100 >"$group/pids.max"
probe
