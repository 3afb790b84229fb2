# busybox and nothing else: no C library, no Python. What is missing is named.
# run: refused language_unavailable cause="Python"
. "$COMMON"
[ -e /bin/busybox ] || skip "no busybox (apt-get install busybox-static)"
empty_root
furnish "$root"
mkdir -p "$root/bin" "$root/usr/bin" "$root/lib"
cp /bin/busybox "$root/bin"
for name in sh cat sleep ls; do ln -s busybox "$root/bin/$name"; done
bring_libraries
enter
