# Debian 11's user land: its own Python, shell and layout.
# run: ok
. "$COMMON"
debian bullseye
bring_libraries
enter
