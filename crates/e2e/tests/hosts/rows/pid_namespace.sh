# In a PID namespace, not as its first process.
# run: ok
. "$COMMON"
for controller in cpu cpuacct memory pids freezer unified; do group "$controller"; done
probe unshare --pid --fork --mount-proc --kill-child
