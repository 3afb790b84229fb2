# Docker with the documented options (docs/guides/service.md).
# run: ok
# open: doctor takes a missing capability for a breach
# ordinary open: no
. "$COMMON"
container --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined --cap-drop ALL --cap-add SETFCAP
