# user.max_net_namespaces is 0.
# run: refused isolation_unavailable cause="network_namespace" remedy="max_net_namespaces"
. "$COMMON"
in_user_namespace <<'I'
echo 0 >/proc/sys/user/max_net_namespaces
probe
I
