# The server's own memory group is smaller than limits.memory_mb: doctor names it.
# run: ok
# doctor: ok says="memory_mb"
. "$COMMON"
group memory
echo $((300 << 20)) >"$group/memory.limit_in_bytes"
probe
