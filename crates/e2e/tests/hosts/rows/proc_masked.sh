# Container engines mask parts of /proc.
# run: refused isolation_unavailable cause="private_proc" remedy="systempaths=unconfined"
. "$COMMON"
mount -t tmpfs -o ro mask /proc/fs
for file in kcore keys timer_list interrupts; do
  [ ! -e "/proc/$file" ] || mount --bind /dev/null "/proc/$file"
done
probe
