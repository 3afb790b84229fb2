# The operator's Python finds its libraries by an rpath outside its prefix.
# run: ok
. "$COMMON"
command -v patchelf >/dev/null || skip "no patchelf (apt-get install patchelf)"
version=$(/usr/bin/python3 -I -c 'import sys; print("%d.%d" % sys.version_info[:2])')
mount -t tmpfs -o mode=755 opt /opt
mount -t tmpfs -o mode=755 srv /srv
mkdir -p /opt/py/bin /opt/py/lib /srv/vendor/lib /srv/vendor/real
cp -L "/usr/bin/python$version" /opt/py/bin/python3
ln -s "/usr/lib/python$version" "/opt/py/lib/python$version"
# The name that the loader uses is a link to another folder.
for library in $(libraries_of /opt/py/bin/python3 | grep -E 'libexpat|libz'); do
  cp -L "$library" /srv/vendor/real
  ln -s "/srv/vendor/real/$(basename "$library")" /srv/vendor/lib
done
patchelf --set-rpath /srv/vendor/lib /opt/py/bin/python3
settings <<<'python = "/opt/py/bin/python3"'
program <<<'print(int("/srv/vendor/" in open("/proc/self/maps").read()))'
probe
