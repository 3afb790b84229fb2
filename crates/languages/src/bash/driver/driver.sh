# The driver of a Bash session: reads cells from descriptor 3, answers on descriptor 4.
#
# One shell evaluates all cells, so variables, functions, options and the working folder stay. `exit`, `set -e` and an
# interrupt end a shell. At its end, it passes its state to a new shell, which replaces it in the same process. Frames
# carry the code as raw bytes after a small header, because a shell cannot parse JSON. Internal names begin with
# __sandcell_, local ones with __sandcell__: a cell may make any other name `readonly`.
__sandcell_byte() {
  local __sandcell__c
  IFS= builtin read -r -d '' -n 1 -u "$__sandcell_in" __sandcell__c || return 1
  builtin printf -v __sandcell_b '%d' "'$__sandcell__c"
  [[ -n $__sandcell__c ]] || __sandcell_b=0
  __sandcell_b=$(( __sandcell_b & 255 ))
}
__sandcell_size() {
  local __sandcell__a __sandcell__b __sandcell__c
  __sandcell_byte || return 1; __sandcell__a=$__sandcell_b
  __sandcell_byte || return 1; __sandcell__b=$__sandcell_b
  __sandcell_byte || return 1; __sandcell__c=$__sandcell_b
  __sandcell_byte || return 1
  __sandcell_n=$(( __sandcell__a | __sandcell__b << 8 | __sandcell__c << 16 | __sandcell_b << 24 ))
}
__sandcell_text() {
  __sandcell_t=
  (( $1 == 0 )) && return 0
  IFS= builtin read -r -d '' -N "$1" -u "$__sandcell_in" __sandcell_t
}
__sandcell_send() {
  local LC_ALL=C __sandcell__head=$1 __sandcell__body=$2 __sandcell__text
  local __sandcell__n=${#__sandcell__head} __sandcell__all
  (( __sandcell__all = __sandcell__n + 4 + ${#__sandcell__body} ))
  builtin printf -v __sandcell__text '\\x%02x\\x%02x\\x%02x\\x%02x\\x%02x\\x%02x\\x%02x\\x%02x' \
    $(( __sandcell__all & 255 )) $(( __sandcell__all >> 8 & 255 )) \
    $(( __sandcell__all >> 16 & 255 )) $(( __sandcell__all >> 24 )) \
    $(( __sandcell__n & 255 )) $(( __sandcell__n >> 8 & 255 )) \
    $(( __sandcell__n >> 16 & 255 )) $(( __sandcell__n >> 24 ))
  builtin printf "$__sandcell__text%s%s" "$__sandcell__head" "$__sandcell__body" >&"$__sandcell_out"
}
__sandcell_done() {
  local __sandcell__error=
  [[ $2 != interrupted ]] || __sandcell__error=',"error":{"name":"Interrupted","message":"","traceback":"Interrupted: the code was stopped from outside"}'
  __sandcell_send "{\"type\":\"done\",\"nonce\":\"$1\",\"status\":\"$2\",\"exit_code\":$3$__sandcell__error}"
}
# Reads frames until there is a cell to run.
__sandcell_next() {
  local LC_ALL=C __sandcell__head __sandcell__sizes
  while :; do
    __sandcell_size || builtin exit 0
    __sandcell_size || builtin exit 0
    __sandcell_text "$__sandcell_n" || builtin exit 0
    __sandcell__head=$__sandcell_t
    __sandcell__sizes=()
    while [[ $__sandcell__head =~ \"bytes\":([0-9]+)(.*)$ ]]; do
      __sandcell__sizes+=("${BASH_REMATCH[1]}")
      __sandcell__head=${__sandcell__head%%\"bytes\":*}${BASH_REMATCH[2]}
    done
    __sandcell__head=$__sandcell_t
    [[ $__sandcell__head =~ \"nonce\":\"([0-9a-f-]+)\" ]] || continue
    case $__sandcell__head in
      *'"type":"run"'*)
        __sandcell_nonce=${BASH_REMATCH[1]}
        # The programs of the cell name it when they call tools of the host.
        [[ ! $__sandcell__head =~ \"execution\":\"([^\"]+)\" ]] || builtin export "SANDCELL_EXECUTION=${BASH_REMATCH[1]}" 2>/dev/null
        __sandcell_text "${__sandcell__sizes[0]}" || builtin exit 0
        __sandcell_code=$__sandcell_t
        __sandcell_stdin=
        __sandcell_has_stdin=
        if (( ${#__sandcell__sizes[@]} > 1 )); then
          __sandcell_text "${__sandcell__sizes[1]}" || builtin exit 0
          __sandcell_stdin=$__sandcell_t
          __sandcell_has_stdin=1
        fi
        return 0 ;;
      *'"type":"variables"'*)
        __sandcell_variables "${BASH_REMATCH[1]}" ;;
    esac
  done
}
# Succeeds if the next frame announces an interrupt of this cell that arrived before it.
__sandcell_announced() {
  builtin read -t 0 -u "$__sandcell_in" || return 1
  local LC_ALL=C
  __sandcell_size && __sandcell_size && __sandcell_text "$__sandcell_n" || builtin exit 0
  [[ $__sandcell_t == *'"interrupt"'*"\"$__sandcell_nonce\""* ]]
}
# Lists the names of all variables without starting a process.
__sandcell_names() {
  local __sandcell__first
  __sandcell_names=()
  for __sandcell__first in _ {a..z} {A..Z}; do
    builtin eval "__sandcell_names+=(\"\${!$__sandcell__first@}\")"
  done
}
# Escapes a text for a JSON string; unprintable characters are written in shell quoting.
__sandcell_quote() {
  __sandcell_q=${1@Q}
  __sandcell_q=${__sandcell_q//\\/\\\\}
  __sandcell_q=${__sandcell_q//\"/\\\"}
}
# Answers with the variables that cells have made. A nameref is listed without its target, because the target may
# contain commands.
__sandcell_variables() {
  local LC_ALL=C.UTF-8 IFS=' ' __sandcell__list= __sandcell__count=0 __sandcell__name __sandcell__kind
  local __sandcell__shape __sandcell__shown __sandcell__nocase=
  if builtin shopt -q nocasematch; then
    __sandcell__nocase=1
    builtin shopt -u nocasematch
  fi
  __sandcell_names
  for __sandcell__name in "${__sandcell_names[@]}"; do
    [[ $__sandcell__name == __sandcell_* || "$__sandcell_own$__sandcell_given" == *" $__sandcell__name "* ]] && continue
    (( __sandcell__count++ < 200 )) || break
    __sandcell__shape=
    if [[ -R $__sandcell__name ]]; then
      __sandcell__kind=nameref __sandcell__shown=
    else
      local -n __sandcell__value=$__sandcell__name
      case ${__sandcell__value@a} in
        *A*) __sandcell__kind=map ;;
        *a*) __sandcell__kind=array ;;
        *i*) __sandcell__kind=integer ;;
        *) __sandcell__kind=string ;;
      esac
      case $__sandcell__kind in
        map | array)
          __sandcell__shape=${#__sandcell__value[@]}
          __sandcell__shown="${__sandcell__value[*]:0:20}" ;;
        *)
          [[ $__sandcell__kind == integer ]] || __sandcell__shape=${#__sandcell__value}
          __sandcell__shown=${__sandcell__value:0:81} ;;
      esac
      builtin unset -n __sandcell__value
    fi
    (( ${#__sandcell__shown} <= 80 )) || __sandcell__shown=${__sandcell__shown:0:80}…
    __sandcell_quote "$__sandcell__shown"
    __sandcell__list+=",{\"name\":\"$__sandcell__name\",\"type\":\"$__sandcell__kind\",\"shape\":\"$__sandcell__shape\""
    __sandcell__list+=",\"bytes\":0,\"preview\":\"$__sandcell_q\"}"
  done
  [[ -z $__sandcell__nocase ]] || builtin shopt -s nocasematch
  __sandcell_send "{\"type\":\"variables\",\"nonce\":\"$1\",\"variables\":[${__sandcell__list#,}]}"
}
# Prints the state of the shell as commands, without the variables that bash itself maintains. No local name shadows a
# user's variable, and no process is started for each variable: on a busy machine that takes longer than an interrupt
# may.
__sandcell_state() {
  builtin trap '' INT
  local __sandcell__name
  while IFS= builtin read -r __sandcell__name; do
    [[ $__sandcell__name == __sandcell_* || $__sandcell_own == *" $__sandcell__name "* ]] && continue
    builtin declare -p "$__sandcell__name" 2>/dev/null
  done < <(builtin compgen -v)
  while IFS= builtin read -r __sandcell__name; do
    [[ $__sandcell__name == __sandcell_* || $__sandcell__name == trap ]] || builtin declare -f "$__sandcell__name"
  done < <(builtin compgen -A function)
  while IFS= builtin read -r __sandcell__name; do
    __sandcell__name=${__sandcell__name##* }
    [[ $__sandcell__name == __sandcell_* ]] || builtin printf 'export -f %q\n' "$__sandcell__name"
  done < <(builtin declare -Fx)
  builtin alias -p
  builtin shopt -p
  builtin printf 'builtin cd -- %q\n' "$PWD"
  builtin printf 'builtin umask '
  builtin umask
  builtin printf '__sandcell_given=%q\n' "$__sandcell_given"
}
# Waits once for programs behind `> >(…)`, which may still write to the cell's output after its end. They are children
# that are not jobs and have a pipe as standard input; a new one takes a moment to have it. Nothing is checked if the
# cell has started none.
__sandcell_settle() {
  [[ ${!} != "$__sandcell_last" ]] || return 0
  local IFS=$' \t\n' __sandcell__pid __sandcell__open __sandcell__n=0
  local -a __sandcell__children
  while (( __sandcell__n++ < 100 )); do
    __sandcell__children=("${!}")
    [[ ! -r /proc/$$/task/$$/children ]] || builtin read -r -a __sandcell__children < "/proc/$$/task/$$/children"
    __sandcell__open=
    for __sandcell__pid in "${__sandcell__children[@]}"; do
      [[ $__sandcell_known == *" $__sandcell__pid "* ]] && continue
      (( __sandcell__n > 5 )) && [[ ! -p /proc/$__sandcell__pid/fd/0 ]] || __sandcell__open=1
    done
    [[ -n $__sandcell__open ]] || break
    if (( __sandcell__n == 1 )); then __sandcell_jobs; else builtin command -p sleep 0.01; fi
  done
  __sandcell_known=" ${__sandcell__children[*]} "
  __sandcell_last=${!}
}
# Adds the processes of jobs to the known ones.
__sandcell_jobs() {
  local __sandcell__line
  while IFS= builtin read -r __sandcell__line; do
    [[ ! $__sandcell__line =~ ^(\[[0-9]+\][-+]?)?\ *([0-9]+)\  ]] || __sandcell_known+="${BASH_REMATCH[2]} "
  done <<< "$(builtin jobs -l)"
}
# Ends a cell. Its options are saved in __sandcell_flags and switched off.
__sandcell_after() {
  builtin trap : INT
  local __sandcell__user=$__sandcell_user_exit
  if [[ -n $__sandcell__user ]]; then
    __sandcell_user_exit=
    builtin eval "$__sandcell__user"
  fi
  __sandcell_settle
  if (( __sandcell_status == 0 )); then
    __sandcell_done "$__sandcell_nonce" ok 0
  else
    __sandcell_done "$__sandcell_nonce" exit "$__sandcell_status"
  fi
}
# Replaces the ending shell by a new one with the same state.
__sandcell_leave() {
  { local __sandcell__status=$?; local __sandcell__flags=${-//[^efunvx]/}; builtin set +efunvx; } 2>/dev/null
  builtin trap : INT
  builtin trap - EXIT
  local __sandcell__how=exit __sandcell__user=$__sandcell_user_exit
  (( BASH_SUBSHELL == 0 )) || builtin exit "$__sandcell__status"
  __sandcell_user_exit=
  [[ -z $__sandcell__user ]] || builtin eval "$__sandcell__user"
  if [[ -n $__sandcell_stopped ]]; then
    __sandcell__how=interrupted __sandcell__status=130
  elif (( __sandcell__status == 0 )); then
    __sandcell__how=ok
  fi
  [[ ${!} == "$__sandcell_last" ]] || __sandcell_jobs
  SANDCELL_AGAIN="$__sandcell_in $__sandcell_out $__sandcell_1 $__sandcell_2 ${__sandcell_known// /,} $__sandcell_nonce \
$__sandcell__how $__sandcell__status $__sandcell__flags" \
    builtin exec "$BASH" --norc --noprofile -c "$BASH_EXECUTION_STRING" "$0" "$__sandcell_driver" <(__sandcell_state) \
    >&"$__sandcell_1" 2>&"$__sandcell_2"
}
__sandcell_interrupt() {
  __sandcell_stopped=1
  builtin exit 130
}
# Runs a user's exit trap at the end of its cell. The shell's own exit trap belongs to the driver.
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
# Variables that bash itself maintains.
__sandcell_own=" _ BASH BASHOPTS BASHPID BASH_ALIASES BASH_ARGC BASH_ARGV BASH_ARGV0 BASH_CMDS BASH_COMMAND BASH_COMPAT \
BASH_EXECUTION_STRING BASH_LINENO BASH_LOADABLES_PATH BASH_REMATCH BASH_SOURCE BASH_SUBSHELL BASH_VERSINFO BASH_VERSION \
COMP_WORDBREAKS DIRSTACK EPOCHREALTIME EPOCHSECONDS EUID FUNCNAME GROUPS HISTCMD HOSTNAME HOSTTYPE LINENO MACHTYPE OPTERR \
OPTIND OSTYPE PIPESTATUS PPID RANDOM SECONDS SHELLOPTS SHLVL SRANDOM UID "
__sandcell_driver=$1
__sandcell_user_exit=
__sandcell_stopped=
__sandcell_flags=
__sandcell_last=
__sandcell_known=' '
if [[ -z $SANDCELL_AGAIN ]]; then
  __sandcell_names
  __sandcell_given=" ${__sandcell_names[*]} OLDPWD BASH_ENV COLUMNS LINES LC_ALL SANDCELL_EXECUTION "
  exec {__sandcell_in}<&3 {__sandcell_out}>&4 3<&- 4>&- {__sandcell_1}>&1 {__sandcell_2}>&2
  __sandcell_send "{\"type\":\"ready\",\"version\":\"${BASH_VERSION%%[^0-9.]*}\",\"pid\":$$}"
else
  builtin trap : INT
  builtin read -r __sandcell_in __sandcell_out __sandcell_1 __sandcell_2 __sandcell_known __sandcell_nonce __sandcell_how __sandcell_status \
    __sandcell_flags <<< "$SANDCELL_AGAIN"
  builtin unset SANDCELL_AGAIN
  __sandcell_from=${2##*/}
  IFS= builtin read -r -d '' -u "$__sandcell_from" __sandcell_t
  exec {__sandcell_from}<&-
  builtin eval "$__sandcell_t" 2>/dev/null
  __sandcell_known=${__sandcell_known//,/ }
  __sandcell_last=none
  __sandcell_settle
  __sandcell_done "$__sandcell_nonce" "$__sandcell_how" "$__sandcell_status"
fi
