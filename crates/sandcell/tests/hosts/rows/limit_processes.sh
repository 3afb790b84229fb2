# ulimit -u 5: the limit is named.
# only: ordinary
# run: refused internal remedy="ulimit -u"
. "$COMMON"
export WITH="prlimit --nproc=5:5"
probe
