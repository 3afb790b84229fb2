# ulimit -s 64
# run: ok
# open: the stack overflows
. "$COMMON"
probe prlimit --stack=65536:65536
