# In bubblewrap with a separate /proc, parts of which bubblewrap covers: the error names the covering mount.
# run: refused isolation_unavailable cause="private_proc" says="/proc/bus"
. "$COMMON"
command -v bwrap >/dev/null || skip "no bwrap (apt-get install bubblewrap)"
for controller in cpu cpuacct memory pids freezer unified; do group "$controller"; done
probe bwrap --bind / / --proc /proc --dev /dev --unshare-pid --die-with-parent
