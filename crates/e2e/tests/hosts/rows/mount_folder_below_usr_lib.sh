# A folder is mounted below /usr/lib, as WSL2 does with /usr/lib/wsl/drivers and /usr/lib/wsl/lib.
# run: ok
. "$COMMON"
view /usr
mount --bind "$root" /usr
mkdir -p /usr/lib/wsl/drivers /usr/lib/wsl/lib
folder "$W/drivers"
mount --bind "$W/drivers" /usr/lib/wsl/drivers
mount --bind "$W/drivers" /usr/lib/wsl/lib
program <<'P'
assert open('/usr/lib/wsl/lib/file').read() == open('/usr/lib/wsl/drivers/file').read() == 'here\n'
print(1)
P
probe
