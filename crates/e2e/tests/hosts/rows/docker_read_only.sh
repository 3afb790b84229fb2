# Docker with the documented options and a read-only root.
# run: ok
. "$COMMON"
container --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined --read-only --tmpfs /tmp
