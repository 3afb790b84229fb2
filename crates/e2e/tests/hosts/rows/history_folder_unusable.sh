# The data folder cannot be made: one warning names it, and calls go on.
# run: ok says="home/data" says="not kept in the history"
# serve: ok says="home/data"
# doctor: ok
. "$COMMON"
touch "$W/home/data"
probe
[ "$(grep -c 'WARN.*history' "$W/serve.err")" = 1 ] || { cat "$W/serve.err"; exit 1; }
