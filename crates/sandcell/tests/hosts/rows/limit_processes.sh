# ulimit -u 5: the limit is named.
# only: ordinary
# run: refused process_limit cause="RLIMIT_NPROC" remedy="ulimit -u"
# open: it panics
. "$COMMON"
export WITH="prlimit --nproc=8:8"
probe
