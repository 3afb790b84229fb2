# The data folder is on a disk without room: one warning names it, and calls go on.
# run: ok says="history.db" says="not kept in the history"
# serve: ok says="history.db"
# doctor: ok
. "$COMMON"
mkdir -p "$W/home/data"
mount -t tmpfs -o size=1M,mode=755,uid=$ID full "$W/home/data"
dd if=/dev/zero of="$W/home/data/ballast" bs=64K count=64 status=none 2>/dev/null || true
probe
[ "$(grep -c WARN "$W/serve.err")" = 1 ] || { cat "$W/serve.err"; exit 1; }
