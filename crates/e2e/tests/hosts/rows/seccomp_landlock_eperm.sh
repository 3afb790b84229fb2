# A filter in front of Landlock, as systemd-nspawn has: it is told from a kernel without.
# run: refused isolation_unavailable cause="landlock" cause="filter"
. "$COMMON"
probe $without EPERM landlock_create_ruleset landlock_add_rule landlock_restrict_self --
