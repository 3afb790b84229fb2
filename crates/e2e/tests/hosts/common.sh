# What rows share; `. "$COMMON"` at the start. Variables that they find: W (work folder), BIN, PROBE, STAGE (the folder of all
# three), AS (becomes the ordinary user; empty for root), ID (0 for root), CACHE (user lands of other systems).
# $W/print.py is the program that `run` is given; it must print 1.

# Says why the row cannot be tried here. CI must be able to.
skip() { echo "$*"; exit 77; }

# The same for what no machine is required to have.
not_required() { echo "$*"; exit 78; }

# Runs the three commands, here or behind what changes this process.
probe() { "$@" $AS sh "$PROBE"; }

# Settings for the three commands, from standard input.
settings() {
  mkdir -p "$W/home/.config/sandcell"
  cat >"$W/home/.config/sandcell/config.toml"
}

# The program of `run`, from standard input.
program() { cat >"$W/print.py"; }

# A folder with a file that everybody may read.
folder() {
  mkdir -p "$1"
  echo here >"$1/file"
  chmod -R a+rX "$1"
}

# A new root: the real /proc, /sys and /dev, an own /tmp, and the stage.
furnish() {
  mkdir -p "$1/proc" "$1/sys" "$1/dev" "$1/tmp" "$1/etc" "$1$STAGE"
  [ -e "$1/etc/passwd" ] || cp /etc/passwd /etc/group "$1/etc"
  mount --rbind /proc "$1/proc"
  mount --rbind /sys "$1/sys"
  mount --rbind /dev "$1/dev"
  mount -t tmpfs -o mode=1777 tmp "$1/tmp"
  mount --bind "$STAGE" "$1$STAGE"
}

# A writable view of a folder: its own files stay as they are.
view() {
  mkdir -p "$W/view"
  mount -t tmpfs -o mode=755 view "$W/view"
  mkdir "$W/view/upper" "$W/view/work" "$W/view/root"
  mount -t overlay -o "lowerdir=$1,upperdir=$W/view/upper,workdir=$W/view/work" overlay "$W/view/root"
  root=$W/view/root
}

# Debian's user land, made once by `.ci/hosts`.
debian() {
  [ -e "$CACHE/$1/made" ] || skip "$CACHE/$1 is missing: .ci/hosts makes it (debootstrap)"
  view "$CACHE/$1"
  furnish "$root"
}

# An empty root, in memory.
empty_root() {
  root=$W/root
  mkdir -p "$root"
  mount -t tmpfs -o mode=755 root "$root"
}

# The libraries that a program needs, with its loader.
libraries_of() { ldd "$@" 2>/dev/null | grep -o '/[^ ]*' | sort -u | grep -v ':$' || true; }

# From here on the program is one that brings its C library: the static build where there is one, else a copy with the
# libraries of this machine beside it.
bring_libraries() {
  if [ -n "${SANDCELL_TEST_STATIC_BIN:-}" ]; then
    # A program that is being written cannot be started, and rows run at the same time.
    (
      flock 9
      [ -e "$STAGE/static" ] || { cp "$SANDCELL_TEST_STATIC_BIN" "$STAGE/static.new"; mv "$STAGE/static.new" "$STAGE/static"; }
    ) 9>"$STAGE/static.lock"
    export BIN=$STAGE/static
    return
  fi
  command -v patchelf >/dev/null || skip "no patchelf (apt-get install patchelf)"
  (
    flock 9
    [ ! -e "$STAGE/carried/made" ] || exit 0
    mkdir -p "$STAGE/carried"
    cp -L "$BIN" $(libraries_of "$BIN") "$STAGE/carried"
    patchelf --set-interpreter "$(echo "$STAGE"/carried/ld-*)" --set-rpath "$STAGE/carried" "$STAGE/carried/sandcell"
    touch "$STAGE/carried/made"
  ) 9>"$STAGE/carried.lock"
  export BIN=$STAGE/carried/sandcell
}

# Makes the new root this namespace's root (the kernel gives a process in a chroot no user namespace) and probes there. The
# programs that it takes are this machine's, by descriptors: the new root may have none, or none that fit.
enter() {
  local libraries
  libraries=$(dirname "$(libraries_of /usr/bin/setpriv | grep '/libc\.')")
  exec 4<"$libraries" 5<"$(libraries_of /usr/bin/setpriv | grep '/ld-')" 6</usr/bin/umount 7</usr/bin/setpriv
  machines="/proc/self/fd/5 --library-path /proc/self/fd/4"
  mkdir "$root/.old"
  cd "$root"
  pivot_root . .old
  cd /
  $machines /proc/self/fd/6 -l /.old
  exec $machines /proc/self/fd/7 --reuid="$ID" --regid="$ID" --clear-groups \
    sh -c 'exec 4<&- 5<&- 6<&- 7<&-; exec sh "$PROBE"'
}

# A container of the tests' daemon with these options.
container() {
  [ -n "${SANDCELL_TEST_DOCKER_HOST:-}" ] || skip "no daemon: eval \"\$(.ci/docker)\""
  export DOCKER_HOST=$SANDCELL_TEST_DOCKER_HOST
  docker run --rm --network none --user "$ID:$ID" -v "$STAGE:$STAGE" -e W -e BIN -e PROBE -e HOME -e SANDCELL_DATA_DIR \
    -e LANG "$@" sandcell/python sh "$PROBE"
}

# Answers system calls of what is started with an error: `probe $without ERRNO CALL... --`, also twice.
without="/usr/bin/python3 -I -S $FILTER"

# Puts this shell into a new control group below the machine's: `group CONTROLLER`. Its folder is $group.
group() {
  local top=/sys/fs/cgroup/$1
  [ -d "$top" ] || not_required "there is no hierarchy of $1 here"
  group=$top/sandcell-hosts-$$
  mkdir -p "$group"
  groups+=("$group")
  trap leave_groups EXIT
  echo $$ >"$group/cgroup.procs"
}
groups=()
leave_groups() {
  local group
  for group in "${groups[@]}"; do
    echo $$ >"$(dirname "$group")/cgroup.procs"
    find "$group" -depth -type d -exec rmdir {} +
  done
}

# Runs the script of standard input in a user namespace that has all ids of the machine, so that its own limits can be set.
in_user_namespace() {
  cat >"$W/inside.sh"
  unshare --user bash -c 'until [ -e "$W/mapped" ]; do sleep 0.01; done
    exec setpriv --reuid=0 --regid=0 --clear-groups bash -euo pipefail -c ". \"$COMMON\"; . \"$W/inside.sh\""' &
  # Before it is in its namespace, the map cannot be written.
  until echo "0 0 4294967295" 2>/dev/null >"/proc/$!/uid_map"; do sleep 0.01; done
  echo "0 0 4294967295" >"/proc/$!/gid_map"
  touch "$W/mapped"
  wait $!
}

# Runs the three commands on the kernel of another Debian, in an emulated machine. That keeps no file, so what they left comes
# back as text.
emulated() {
  [ -n "${SANDCELL_TEST_VM:-}" ] || skip "no emulated machine (SANDCELL_TEST_VM=.ci/vm)"
  SANDCELL_CI_VM_SUITE=$1 SANDCELL_CI_VM_SECONDS=400 "$SANDCELL_TEST_VM" env W="$W" BIN="$BIN" HOME="$HOME" LANG="$LANG" \
    sh -c "$AS sh '$PROBE' >/dev/null 2>&1; tar -C '$W' -c . | base64" | base64 -d | tar -x -C "$W"
}
