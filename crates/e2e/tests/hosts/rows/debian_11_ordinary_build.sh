# Debian 11: its C library is older than the one that the ordinary build needs, and the loader says so.
# run: dies says="GLIBC_2.3"
. "$COMMON"
debian bullseye
enter
