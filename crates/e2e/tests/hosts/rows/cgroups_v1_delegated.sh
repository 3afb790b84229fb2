# Groups of version 1 that belong to an ordinary user: limits are held by them, not watched.
# only: ordinary
# run: ok
. "$COMMON"
for controller in cpu cpuacct memory pids freezer; do
  group "$controller"
  chown -R "$ID:$ID" "$group"
done
probe
! grep "watched every" "$W/doctor.out"
