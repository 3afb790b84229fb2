# The operator's Python runs only with LD_LIBRARY_PATH, which sandboxes do not get: the library is named.
# run: refused language_unavailable cause="cannot start in a sandbox: library libabsent-" remedy="LD_LIBRARY_PATH"
. "$COMMON"
command -v patchelf >/dev/null || skip "no patchelf (apt-get install patchelf)"
version=$(/usr/bin/python3 -I -c 'import sys; print("%d.%d" % sys.version_info[:2])')
mount -t tmpfs -o mode=755 opt /opt
mkdir -p /opt/py/bin /opt/py/lib /opt/own
cp -L "/usr/bin/python$version" /opt/py/bin/python3
ln -s "/usr/lib/python$version" "/opt/py/lib/python$version"
cp -L "$(libraries_of /opt/py/bin/python3 | grep libz)" /opt/own/libabsent-z.so.1
patchelf --replace-needed libz.so.1 libabsent-z.so.1 /opt/py/bin/python3
export LD_LIBRARY_PATH=/opt/own
settings <<<'python = "/opt/py/bin/python3"'
probe
