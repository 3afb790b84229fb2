# Debian 11's kernel (5.10) has no overlays in user namespaces, no mount_setattr and no Landlock: refused by name.
# only: root
# run: refused isolation_unavailable cause="Linux 5.10" remedy="Linux 5.13"
. "$COMMON"
emulated bullseye
