# A file system below /lib where /lib is a folder, not a link to /usr/lib.
# run: ok
. "$COMMON"
empty_root
furnish "$root"
mkdir "$root/usr" "$root/bin" "$root/sbin" "$root/lib"
mount --rbind /usr "$root/usr"
cp -L /usr/bin/{sh,bash,cat,grep,sleep,ls} "$root/bin"
mkdir -p "$root/lib64" "$root/lib/firmware"
cp -L /lib64/ld-* "$root/lib64" 2>/dev/null || cp -L /lib/ld-* "$root/lib"
mount -t tmpfs -o mode=755 firmware "$root/lib/firmware"
echo here >"$root/lib/firmware/file"
program <<<'print(len(open("/lib/firmware/file").read()) - 4)'
enter
