# Processes of other users are hidden (hidepid=2), in the process file system of a separate PID namespace.
# run: ok
. "$COMMON"
mount -t proc -o hidepid=2 proc /proc
probe
