# A FUSE file system whose program does not answer is left out and never touched; doctor names it.
# run: ok
# doctor: ok says="/usr/local/odd"
. "$COMMON"
[ -e /dev/fuse ] || not_required "this kernel has no FUSE"
mount -t tmpfs -o mode=755 local /usr/local
mkdir /usr/local/odd
exec 9<>/dev/fuse
# Nobody reads the requests. Closing the descriptor ends those that wait.
mount -i -t fuse -o fd=9,rootmode=40000,user_id=0,group_id=0,allow_other nobody /usr/local/odd
(exec 9>&-; probe)
