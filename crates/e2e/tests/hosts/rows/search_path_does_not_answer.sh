# A folder of the search path lies on a file system that does not answer: nothing is looked for there.
# run: ok
. "$COMMON"
[ -e /dev/fuse ] || not_required "this kernel has no FUSE"
mkdir "$W/odd"
exec 9<>/dev/fuse
# Nobody reads the requests. Closing the descriptor ends those that wait.
mount -i -t fuse -o fd=9,rootmode=40000,user_id=0,group_id=0,allow_other nobody "$W/odd"
export WITH="env PATH=$W/odd/bin:$PATH"
(exec 9>&-; probe)
grep -q "$W/odd/bin: its file system does not answer" "$W/serve.err"
umount -l "$W/odd"
