# Installs packages of npm from inside the sandbox. The working folder is the home folder.
# `resolve SPEC…` finds exact versions. It prints the lock file of the installed packages, a NUL, and the lock file with the new ones.
# `install LINK` installs that second lock file and runs LINK, a program of Node that links the packages into node_modules.
set -u
home=$PWD step=$1
now=$home/.local/share/sandcell/npm
next=$now.next
shift

fail() {
  echo "$1" >&2
  exit 1
}

# Runs npm. If npm fails, prints the first line of its output that states a reason, and ends.
npm_or_fail() {
  npm "$@" --ignore-scripts --omit=dev --no-audit --no-fund --no-update-notifier --no-progress --loglevel=error --logs-max=0 \
    >"$next/npm.log" 2>&1 </dev/null && return
  reason=$(sed -n 's/^npm \(error\|ERR!\) //p' "$next/npm.log" | grep -v '^\(code\|errno\|syscall\) ' | grep -m1 '[a-z]')
  fail "${reason:-$(grep . "$next/npm.log" | tail -n1)}"
}

case $step in
resolve)
  command -v npm >/dev/null || fail "npm: not found"
  rm -rf "$next"
  mkdir -p "$now" "$next" || exit 1
  cp "$now/package.json" "$now/package-lock.json" "$next/" 2>/dev/null || echo '{"private": true}' >"$next/package.json"
  cd "$next" || exit 1
  npm_or_fail install --package-lock-only "$@"
  cat "$now/package-lock.json" 2>/dev/null
  printf '\0'
  cat package-lock.json
  ;;
install)
  cd "$next" || exit 1
  npm_or_fail ci
  rm -rf "$now" && mv "$next" "$now" || exit 1
  # Removes links to packages that are no longer installed.
  for link in "$home"/node_modules/* "$home"/node_modules/@*/* "$home"/node_modules/.bin/*; do
    case $(readlink "$link") in
    "$now"/*) [ -e "$link" ] || rm -f "$link" ;;
    esac
  done
  HOME=$home exec node -e "$1" "$now"
  ;;
esac
