# Mounts travel between namespaces, as under systemd; what a sandbox mounts must not.
# run: ok
. "$COMMON"
mount --make-rshared /
before=$(wc -l </proc/self/mountinfo)
probe
[ "$(wc -l </proc/self/mountinfo)" = "$before" ] || { echo "mounts are left"; exit 1; }
