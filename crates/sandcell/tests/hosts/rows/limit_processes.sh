# ulimit -u 5: the limit is named.
# only: ordinary
# run: refused internal remedy="ulimit -u"
# open: a thread that cannot be started panics in serve, and the limit is not named
. "$COMMON"
export WITH="prlimit --nproc=5:5"
probe
