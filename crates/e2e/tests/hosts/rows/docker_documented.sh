# Docker with the documented options (docs/guides/service.md).
# run: ok
. "$COMMON"
container --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined --cap-drop ALL --cap-add SETFCAP
