# user.max_mnt_namespaces is 0.
# run: refused isolation_unavailable remedy="max_mnt_namespaces"
. "$COMMON"
in_user_namespace <<'I'
echo 0 >/proc/sys/user/max_mnt_namespaces
probe
I
