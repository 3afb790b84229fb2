# As the first process of a PID namespace: whoever is orphaned is reaped, and the end is silent.
# run: ok
. "$COMMON"
# Groups of its own: the machine's servers are not seen from a PID namespace.
for controller in cpu cpuacct memory pids freezer unified; do group "$controller"; done
export WITH="unshare --pid --fork --mount-proc"
[ "$ID" = 0 ] || WITH="unshare --user --map-root-user --pid --fork --mount-proc"
probe
! grep -q "did not shut down" "$W/serve.err" || { cat "$W/serve.err"; exit 1; }
