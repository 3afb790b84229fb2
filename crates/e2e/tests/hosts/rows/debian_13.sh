# Debian 13's user land: its own Python, shell and layout.
# run: ok
. "$COMMON"
debian trixie
bring_libraries
enter
