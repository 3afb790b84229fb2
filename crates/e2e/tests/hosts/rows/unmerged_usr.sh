# /bin, /lib and /lib64 are folders of their own, as before /usr was merged.
# run: ok
. "$COMMON"
empty_root
furnish "$root"
mkdir "$root/usr" "$root/bin" "$root/sbin" "$root/lib"
mount --rbind /usr "$root/usr"
cp -L /usr/bin/{sh,bash,cat,grep,sleep,ls} "$root/bin"
mkdir -p "$root/lib64" "$root/lib/own"
cp -L /lib64/ld-* "$root/lib64" 2>/dev/null || cp -L /lib/ld-* "$root/lib"
echo here >"$root/lib/own/file"
program <<<'print(len(open("/lib/own/file").read()) - 4)'
enter
