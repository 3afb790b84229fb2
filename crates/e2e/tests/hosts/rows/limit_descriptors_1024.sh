# ulimit -n 1024, soft and hard.
# run: ok
. "$COMMON"
probe prlimit --nofile=1024:1024
