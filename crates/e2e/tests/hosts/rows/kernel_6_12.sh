# Debian 13's kernel (6.12), with control groups of version 2 alone.
# only: root
# run: ok
. "$COMMON"
emulated trixie
