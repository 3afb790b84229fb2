# Docker with CAP_SYS_ADMIN and Docker's own filter: both options that are missing are named at once.
# run: refused isolation_unavailable remedy="seccomp=unconfined" remedy="systempaths=unconfined"
. "$COMMON"
container --cap-add SYS_ADMIN
