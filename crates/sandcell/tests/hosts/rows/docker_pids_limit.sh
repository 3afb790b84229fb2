# Docker with the documented options and limits of memory and processes.
# run: ok
# open: doctor takes a missing capability for a breach
# ordinary open: no
. "$COMMON"
container --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined --memory 2g --pids-limit 512
