# ulimit -s 64, which cannot be raised: the limit is named.
# run: refused backend_unavailable cause="64 KiB" remedy="ulimit -s"
. "$COMMON"
probe prlimit --stack=65536:65536
