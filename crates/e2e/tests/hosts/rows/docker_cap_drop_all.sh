# Docker with the documented options and no capability: an ordinary user needs none, root's id cannot be mapped without.
# run: refused isolation_unavailable cause="user_namespace" says="SETFCAP"
# ordinary run: ok
. "$COMMON"
container --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined --cap-drop ALL
