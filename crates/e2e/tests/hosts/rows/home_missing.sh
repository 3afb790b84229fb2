# No HOME, no data folder named, an empty environment.
# only: ordinary
# run: ok
. "$COMMON"
cat >"$W/bare" <<S
#!/bin/sh
exec env -i "$BIN" "\$@"
S
chmod 755 "$W/bare"
BIN=$W/bare
probe
