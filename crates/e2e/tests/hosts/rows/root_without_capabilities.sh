# Root without any capability, as `--cap-drop ALL` leaves it: root's id cannot be mapped without CAP_SETFCAP, and that is told.
# only: root
# run: refused isolation_unavailable cause="user_namespace" says="SETFCAP"
. "$COMMON"
probe setpriv --bounding-set=-all --inh-caps=-all
