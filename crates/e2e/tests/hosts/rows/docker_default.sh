# Docker without options: every option that is needed is named at once.
# run: refused isolation_unavailable cause="user_namespace" remedy="seccomp=unconfined" remedy="systempaths=unconfined"
. "$COMMON"
container
