# Debian 12's kernel (6.1): Landlock does not hold signals and sockets, and the report says so.
# run: ok
. "$COMMON"
emulated bookworm
grep -q '"landlock"' "$W/doctor.out"
