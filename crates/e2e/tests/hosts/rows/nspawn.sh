# systemd-nspawn with its own filter: what it denies is told as the filter's.
# run: refused isolation_unavailable says="filter"
. "$COMMON"
command -v systemd-nspawn >/dev/null || skip "no systemd-nspawn (apt-get install systemd-container)"
[ -d /run/systemd/system ] || not_required "systemd-nspawn needs a running systemd"
debian bookworm
bring_libraries
umount -R "$root/proc" "$root/sys" "$root/dev" "$root/tmp" "$root$STAGE"
systemd-nspawn --quiet --register=no --keep-unit --directory="$root" --bind="$STAGE" --setenv=W="$W" --setenv=BIN="$BIN" \
  --setenv=PROBE="$PROBE" --setenv=HOME="$HOME" --setenv=SANDCELL_DATA_DIR="$SANDCELL_DATA_DIR" \
  sh -c "exec $AS sh \"$PROBE\"" </dev/null
