# Everything lies below /nix/store, found by rpath; /usr holds env, /bin holds sh.
# run: ok
. "$COMMON"
command -v patchelf >/dev/null || skip "no patchelf (apt-get install patchelf)"
empty_root
furnish "$root"
store=/nix/store
python=$store/2222-python3 libraries=$store/1111-glibc/lib
version=$(/usr/bin/python3 -I -c 'import sys; print("%d.%d" % sys.version_info[:2])')
mkdir -p "$root$libraries" "$root$python/bin" "$root$python/lib/python$version" "$root$store/3333-tools/bin" "$root/bin" "$root/usr/bin"
cp -L "/usr/bin/python$version" "$root$python/bin/python3"
(cd "/usr/lib/python$version" && tar -c --exclude __pycache__ --exclude test --exclude dist-packages .) | tar -x -C "$root$python/lib/python$version"
tools=(bash cat grep sleep ls env sed)
for tool in "${tools[@]}"; do cp -L "/usr/bin/$tool" "$root$store/3333-tools/bin"; done
ln -s bash "$root$store/3333-tools/bin/sh"
cp -L $(libraries_of "$root$python/bin/python3" "$root$python/lib/python$version"/lib-dynload/*.so "$root$store"/3333-tools/bin/*) "$root$libraries"
loader=$(basename "$(echo "$root$libraries"/ld-*)")
for program in "$root$python/bin/python3" "$root$store"/3333-tools/bin/*; do
  [ -L "$program" ] || patchelf --set-interpreter "$libraries/$loader" --set-rpath "$libraries" "$program"
done
patchelf --set-rpath "$libraries" "$root$python/lib/python$version"/lib-dynload/*.so "$root$libraries"/lib[!c]*.so*
ln -s "$store/3333-tools/bin/sh" "$root/bin/sh"
ln -s "$store/3333-tools/bin/env" "$root/usr/bin/env"
mkdir -p "$root/run/current-system/sw/bin"
ln -s "$store"/3333-tools/bin/* "$python/bin/python3" "$root/run/current-system/sw/bin" 2>/dev/null || true
for program in bash cat grep sleep ls env sed sh; do ln -sf "$store/3333-tools/bin/$program" "$root/run/current-system/sw/bin/$program"; done
ln -sf "$python/bin/python3" "$root/run/current-system/sw/bin/python3"
bring_libraries
program <<<'import ssl, sqlite3, ctypes; print(1)'
export PATH=/run/current-system/sw/bin:$PATH
enter
