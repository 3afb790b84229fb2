# A filter answers EPERM to new namespaces, as Docker's default does: all options are named at once.
# run: refused isolation_unavailable cause="user_namespace" remedy="seccomp=unconfined" remedy="systempaths=unconfined"
. "$COMMON"
probe $without ENOSYS clone3 -- $without EPERM unshare clone:0:0x7e020000 --
