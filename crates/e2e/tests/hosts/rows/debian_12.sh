# Debian 12's user land: its own Python, shell and layout.
# run: ok
. "$COMMON"
debian bookworm
bring_libraries
enter
