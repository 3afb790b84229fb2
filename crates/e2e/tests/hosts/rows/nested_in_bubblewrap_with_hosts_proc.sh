# In bubblewrap, with the machine's own /proc.
# run: ok
. "$COMMON"
command -v bwrap >/dev/null || skip "no bwrap (apt-get install bubblewrap)"
probe bwrap --bind / / --dev-bind /dev /dev --bind /proc /proc --unshare-ipc --unshare-uts --die-with-parent
