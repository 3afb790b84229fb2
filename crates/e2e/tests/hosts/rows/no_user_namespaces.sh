# user.max_user_namespaces is 0.
# run: refused isolation_unavailable cause="user_namespace" remedy="max_user_namespaces"
. "$COMMON"
in_user_namespace <<'I'
echo 0 >/proc/sys/user/max_user_namespaces
probe
I
