# Rootless: everything happens in a user namespace.
# run: ok
. "$COMMON"
in_user_namespace <<'I'
probe
I
