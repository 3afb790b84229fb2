# Root of a container without CAP_SYS_ADMIN, where user namespaces are allowed.
# only: root
# run: ok
. "$COMMON"
probe setpriv --bounding-set=-sys_admin --inh-caps=-all
