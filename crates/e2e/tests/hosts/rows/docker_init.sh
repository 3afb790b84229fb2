# Docker with the documented options and --init, which mounts a file over /sbin/docker-init.
# run: ok
. "$COMMON"
container --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined --init
