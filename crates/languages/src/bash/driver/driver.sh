# The inside end of a Bash session: reads cells from descriptor 3, answers on descriptor 4.
#
# One shell evaluates cell after cell, so variables, functions, options and the working folder stay. `exit`, `set -e`
# and an interrupt end a shell; the last thing it does is to hand its state to a new one, which takes its place in the
# same process. Frames carry the code as raw bytes behind a small header, because a shell cannot read JSON.
__sandcell_byte() {
  local c
  IFS= builtin read -r -d '' -n 1 -u "$__sandcell_in" c || return 1
  builtin printf -v __sandcell_b '%d' "'$c"
  [[ -n $c ]] || __sandcell_b=0
  __sandcell_b=$(( __sandcell_b & 255 ))
}
__sandcell_size() {
  local a b c
  __sandcell_byte || return 1; a=$__sandcell_b
  __sandcell_byte || return 1; b=$__sandcell_b
  __sandcell_byte || return 1; c=$__sandcell_b
  __sandcell_byte || return 1
  __sandcell_n=$(( a | b << 8 | c << 16 | __sandcell_b << 24 ))
}
__sandcell_text() {
  __sandcell_t=
  (( $1 == 0 )) && return 0
  IFS= builtin read -r -d '' -N "$1" -u "$__sandcell_in" __sandcell_t
}
__sandcell_send() {
  local LC_ALL=C head=$1 body=$2 text
  local n=${#head} all
  (( all = n + 4 + ${#body} ))
  builtin printf -v text '\\x%02x\\x%02x\\x%02x\\x%02x\\x%02x\\x%02x\\x%02x\\x%02x' \
    $(( all & 255 )) $(( all >> 8 & 255 )) $(( all >> 16 & 255 )) $(( all >> 24 )) \
    $(( n & 255 )) $(( n >> 8 & 255 )) $(( n >> 16 & 255 )) $(( n >> 24 ))
  builtin printf "$text%s%s" "$head" "$body" >&"$__sandcell_out"
}
__sandcell_done() {
  local error=
  [[ $2 != interrupted ]] || error=',"error":{"name":"Interrupted","message":"","traceback":"Interrupted: the code was stopped from outside"}'
  __sandcell_send "{\"type\":\"done\",\"nonce\":\"$1\",\"status\":\"$2\",\"exit_code\":$3$error}"
}
# Reads frames until there is a cell to run.
__sandcell_next() {
  local LC_ALL=C head sizes
  while :; do
    __sandcell_size || builtin exit 0
    __sandcell_size || builtin exit 0
    __sandcell_text "$__sandcell_n" || builtin exit 0
    head=$__sandcell_t
    sizes=()
    while [[ $head =~ \"bytes\":([0-9]+)(.*)$ ]]; do
      sizes+=("${BASH_REMATCH[1]}")
      head=${head%%\"bytes\":*}${BASH_REMATCH[2]}
    done
    head=$__sandcell_t
    [[ $head =~ \"nonce\":\"([0-9a-f-]+)\" ]] || continue
    case $head in
      *'"type":"run"'*)
        __sandcell_nonce=${BASH_REMATCH[1]}
        __sandcell_text "${sizes[0]}" || builtin exit 0
        __sandcell_code=$__sandcell_t
        __sandcell_stdin=
        __sandcell_has_stdin=
        if (( ${#sizes[@]} > 1 )); then
          __sandcell_text "${sizes[1]}" || builtin exit 0
          __sandcell_stdin=$__sandcell_t
          __sandcell_has_stdin=1
        fi
        return 0 ;;
      *'"type":"variables"'*)
        __sandcell_send "{\"type\":\"variables\",\"nonce\":\"${BASH_REMATCH[1]}\",\"variables\":[]}" ;;
    esac
  done
}
# Whether the next frame announces an interrupt of this cell, which came before it.
__sandcell_announced() {
  builtin read -t 0 -u "$__sandcell_in" || return 1
  local LC_ALL=C
  __sandcell_size && __sandcell_size && __sandcell_text "$__sandcell_n" || builtin exit 0
  [[ $__sandcell_t == *'"interrupt"'*"\"$__sandcell_nonce\""* ]]
}
# The shell's state as commands. What bash keeps itself is left out. No name of the user's is hidden by a local one, and
# no process is started for each variable: on a busy machine that takes longer than an interrupt may.
__sandcell_state() {
  builtin trap '' INT
  local __sandcell_name
  local -A __sandcell_own=()
  for __sandcell_name in _ BASH BASHOPTS BASHPID BASH_ALIASES BASH_ARGC BASH_ARGV BASH_ARGV0 BASH_CMDS BASH_COMMAND \
    BASH_EXECUTION_STRING BASH_LINENO BASH_LOADABLES_PATH BASH_REMATCH BASH_SOURCE BASH_SUBSHELL BASH_VERSINFO \
    BASH_VERSION COMP_WORDBREAKS DIRSTACK EPOCHREALTIME EPOCHSECONDS EUID FUNCNAME GROUPS HISTCMD HOSTNAME HOSTTYPE \
    LINENO MACHTYPE OPTERR OPTIND OSTYPE PIPESTATUS PPID RANDOM SECONDS SHELLOPTS SHLVL SRANDOM UID; do
    __sandcell_own[$__sandcell_name]=1
  done
  while IFS= builtin read -r __sandcell_name; do
    [[ $__sandcell_name == __sandcell_* || -n ${__sandcell_own[$__sandcell_name]} ]] && continue
    builtin declare -p "$__sandcell_name" 2>/dev/null
  done < <(builtin compgen -v)
  while IFS= builtin read -r __sandcell_name; do
    [[ $__sandcell_name == __sandcell_* || $__sandcell_name == trap ]] || builtin declare -f "$__sandcell_name"
  done < <(builtin compgen -A function)
  while IFS= builtin read -r __sandcell_name; do
    __sandcell_name=${__sandcell_name##* }
    [[ $__sandcell_name == __sandcell_* ]] || builtin printf 'export -f %q\n' "$__sandcell_name"
  done < <(builtin declare -Fx)
  builtin alias -p
  builtin shopt -p
  builtin printf 'builtin cd -- %q\n' "$PWD"
  builtin printf 'builtin umask '
  builtin umask
}
# A cell has come to its end; its options are kept in __sandcell_flags and are off.
__sandcell_after() {
  builtin trap : INT
  local __sandcell_last=$__sandcell_user_exit
  if [[ -n $__sandcell_last ]]; then
    __sandcell_user_exit=
    builtin eval "$__sandcell_last"
  fi
  if (( __sandcell_status == 0 )); then
    __sandcell_done "$__sandcell_nonce" ok 0
  else
    __sandcell_done "$__sandcell_nonce" exit "$__sandcell_status"
  fi
}
# The shell ends: another one goes on with what this one knew.
__sandcell_leave() {
  { local __sandcell_status=$?; local __sandcell_flags=${-//[^efunvx]/}; builtin set +efunvx; } 2>/dev/null
  builtin trap : INT
  builtin trap - EXIT
  local __sandcell_how=exit __sandcell_last=$__sandcell_user_exit
  (( BASH_SUBSHELL == 0 )) || builtin exit "$__sandcell_status"
  __sandcell_user_exit=
  [[ -z $__sandcell_last ]] || builtin eval "$__sandcell_last"
  if [[ -n $__sandcell_stopped ]]; then
    __sandcell_how=interrupted __sandcell_status=130
  elif (( __sandcell_status == 0 )); then
    __sandcell_how=ok
  fi
  SANDCELL_AGAIN="$__sandcell_in $__sandcell_out $__sandcell_nonce $__sandcell_how $__sandcell_status $__sandcell_flags" \
    builtin exec "$BASH" --norc --noprofile -c "$BASH_EXECUTION_STRING" "$0" "$__sandcell_driver" <(__sandcell_state)
}
__sandcell_interrupt() {
  __sandcell_stopped=1
  builtin exit 130
}
# An exit trap of the user's runs at the end of its cell; the shell's own is ours.
trap() {
  case ${*: -1} in
    EXIT|exit|0)
      if (( BASH_SUBSHELL == 0 && $# > 1 )); then
        [[ $1 == -- ]] && shift
        if [[ $1 == - ]]; then __sandcell_user_exit=; else __sandcell_user_exit=$1; fi
        return 0
      fi ;;
  esac
  builtin trap "$@"
}
__sandcell_driver=$1
__sandcell_user_exit=
__sandcell_stopped=
__sandcell_flags=
if [[ -z $SANDCELL_AGAIN ]]; then
  exec {__sandcell_in}<&3 {__sandcell_out}>&4 3<&- 4>&-
  __sandcell_send "{\"type\":\"ready\",\"version\":\"${BASH_VERSION%%[^0-9.]*}\",\"pid\":$$}"
else
  builtin trap : INT
  builtin read -r __sandcell_in __sandcell_out __sandcell_nonce __sandcell_how __sandcell_status \
    __sandcell_flags <<< "$SANDCELL_AGAIN"
  builtin unset SANDCELL_AGAIN
  __sandcell_from=${2##*/}
  IFS= builtin read -r -d '' -u "$__sandcell_from" __sandcell_t
  exec {__sandcell_from}<&-
  builtin eval "$__sandcell_t" 2>/dev/null
  __sandcell_done "$__sandcell_nonce" "$__sandcell_how" "$__sandcell_status"
fi
