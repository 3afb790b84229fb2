# Others' processes are hidden (hidepid=2), in a process file system of a PID namespace of its own.
# run: ok
. "$COMMON"
mount -t proc -o hidepid=2 proc /proc
probe
