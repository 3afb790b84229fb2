# A file system below the prefix of the operator's Python.
# run: ok
. "$COMMON"
mount -t tmpfs -o mode=755 opt /opt
/usr/bin/python3 -m venv --without-pip /opt/py
packages=$(echo /opt/py/lib/python3.*/site-packages)
mkdir "$packages/extra"
mount -t tmpfs -o mode=755 extra "$packages/extra"
echo 'value = 1' >"$packages/extra/__init__.py"
settings <<<'python = "/opt/py/bin/python"'
program <<<'import extra; print(extra.value)'
probe
