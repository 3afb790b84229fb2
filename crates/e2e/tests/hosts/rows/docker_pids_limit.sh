# Docker with the documented options and limits of memory and processes.
# run: ok
. "$COMMON"
container --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined --memory 2g --pids-limit 512
