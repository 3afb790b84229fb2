# A low soft limit of descriptors, as macOS and old shells have.
# run: ok
. "$COMMON"
probe prlimit --nofile=256:4096
