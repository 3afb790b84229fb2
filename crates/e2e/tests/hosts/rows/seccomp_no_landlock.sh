# A kernel without Landlock: what is missing is named, and no layer is shown as active for it.
# run: refused isolation_unavailable cause="landlock"
. "$COMMON"
probe $without ENOSYS landlock_create_ruleset landlock_add_rule landlock_restrict_self --
