# Docker with the documented options and a read-only root.
# run: ok
# open: doctor takes a missing capability for a breach
# ordinary open: no
. "$COMMON"
container --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined --read-only --tmpfs /tmp
