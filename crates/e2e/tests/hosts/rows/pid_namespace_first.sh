# As the first process of a PID namespace: whoever is orphaned is reaped, and the end is silent.
# run: ok
. "$COMMON"
# A separate group: a PID namespace does not show the machine's servers.
for controller in cpu cpuacct memory pids freezer unified; do group "$controller"; done
export WITH="unshare --pid --fork --mount-proc"
[ "$ID" = 0 ] || WITH="unshare --user --map-root-user --pid --fork --mount-proc"
probe
[ ! -s "$W/serve.err" ] || { cat "$W/serve.err"; exit 1; }
[ "$ID" = 0 ] || exit 0

mkfifo "$W/in"
$WITH "$BIN" serve <"$W/in" >"$W/out" 2>"$W/err" &
server=$!
exec 7>"$W/in"
until first=$(pgrep -P "$server"); do sleep 0.02; done
until [ "$(readlink "/proc/$first/exe")" = "$BIN" ]; do sleep 0.02; done
# The shell ends before its child, which the namespace's first process then inherits.
nsenter --target "$first" --pid --mount sh -c 'sleep 0.3 &'
orphan=$(pgrep -P "$first" -x sleep)
for _ in $(seq 200); do [ -e "/proc/$orphan" ] || break; sleep 0.05; done
[ ! -e "/proc/$orphan" ] || { echo "an orphan is not reaped"; exit 1; }
# A signal reaches the server, and its end is the namespace's.
kill -TERM "$first"
wait "$server" || { echo "it ended with $?"; exit 1; }
[ ! -s "$W/err" ] || { cat "$W/err"; exit 1; }
