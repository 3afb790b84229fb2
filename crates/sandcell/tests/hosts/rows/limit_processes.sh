# ulimit -u 5: the limit is named.
# only: ordinary
# run: refused internal remedy="ulimit -u"
# open: threads that cannot be started panic
. "$COMMON"
export WITH="prlimit --nproc=5:5"
probe
