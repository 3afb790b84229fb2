# ulimit -f 1000
# run: ok
. "$COMMON"
export WITH="prlimit --fsize=1024000:1024000"
probe
