# Fewer processes and threads than the server starts with (`ulimit -u 3`): the limit is named.
# only: ordinary
# run: refused internal remedy="ulimit -u"
. "$COMMON"
export WITH="prlimit --nproc=3:3"
probe
