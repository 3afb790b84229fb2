# A filter denies mounts.
# run: refused isolation_unavailable cause="seccomp" remedy="seccomp=unconfined"
. "$COMMON"
probe $without EPERM mount fsopen open_tree move_mount mount_setattr pivot_root --
