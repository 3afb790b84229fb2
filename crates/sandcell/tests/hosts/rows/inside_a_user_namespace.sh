# Rootless: everything happens in a user namespace.
# run: ok
# open: doctor takes a missing capability for a breach
# ordinary open: no
. "$COMMON"
in_user_namespace <<'I'
probe
I
