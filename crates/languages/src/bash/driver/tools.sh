# The command `tools`: tools of the host's MCP servers, with Bash alone.
#
# It sends one HTTP request over /dev/tcp. The port answers in plain text, because a shell cannot read JSON. All of it runs
# in a subshell, so it leaves no names, options or descriptors behind. Names begin with __sandcell_, as in the driver: code
# may make any other name `readonly`. The status is 0, 1 with the error on stderr, or 2 for a wrong command line.
tools() (
  { builtin set +efuvx +o posix; builtin shopt -u nocasematch; } 2>/dev/null
  LC_ALL=C IFS=' ' # lengths are in bytes
  __sandcell__usage='usage: tools servers                   list the servers
       tools list [SERVER]             list the tools of one server, or of all
       tools search WORDS              find the best 10 tools
       tools describe SERVER.TOOL      show the description and the arguments of a tool
       tools call SERVER.TOOL [JSON]   call a tool; JSON is an object with its arguments, - reads it from stdin'

  # Sets a variable to a text as a part of a URL.
  __sandcell_url() {
    local __sandcell__text=$2 __sandcell__out= __sandcell__letter __sandcell__i
    for (( __sandcell__i = 0; __sandcell__i < ${#__sandcell__text}; __sandcell__i++ )); do
      __sandcell__letter=${__sandcell__text:__sandcell__i:1}
      if [[ $__sandcell__letter != [a-zA-Z0-9._~-] ]]; then
        builtin printf -v __sandcell__letter %d "'$__sandcell__letter"
        builtin printf -v __sandcell__letter %%%02X "$(( __sandcell__letter & 255 ))"
      fi
      __sandcell__out+=$__sandcell__letter
    done
    builtin printf -v "$1" %s "$__sandcell__out"
  }

  # Sets a variable to a name as a JSON string. Names have no control characters.
  __sandcell_string() {
    local __sandcell__text=${2//\\/\\\\}
    builtin printf -v "$1" '"%s"' "${__sandcell__text//\"/\\\"}"
  }

  __sandcell_fail() {
    builtin printf 'tools: %s\n' "${1%$'\n'}" >&2
    builtin exit 1
  }

  # Sends a request (method, path, body) and prints the answer.
  __sandcell_ask() {
    local __sandcell__address=${SANDCELL_TOOLS_URL#*://} __sandcell__line __sandcell__status __sandcell__size=0
    local __sandcell__body= __sandcell__fd
    __sandcell__address=${__sandcell__address%%/*}
    [[ -n $__sandcell__address ]] || __sandcell_fail 'this sandbox has no tools'
    { builtin exec {__sandcell__fd}<>"/dev/tcp/${__sandcell__address%:*}/${__sandcell__address##*:}"; } 2>/dev/null ||
      __sandcell_fail 'the port for tools does not answer'
    # One write: a shell flushes its output after each command.
    __sandcell__line="$1 $2 HTTP/1.1"$'\r\n'"Host: $__sandcell__address"$'\r\nAccept: text/plain\r\nConnection: close\r\n'
    [[ -z $SANDCELL_EXECUTION ]] || __sandcell__line+="Sandcell-Execution: $SANDCELL_EXECUTION"$'\r\n'
    [[ $1 != POST ]] || __sandcell__line+=$'Content-Type: application/json\r\n'"Content-Length: ${#3}"$'\r\n'
    builtin trap '' PIPE # the answer to a refused request may come before its end
    builtin printf '%s\r\n%s' "$__sandcell__line" "$3" 2>/dev/null >&"$__sandcell__fd"
    builtin trap - PIPE
    IFS= builtin read -r __sandcell__line <&"$__sandcell__fd"
    __sandcell__status=${__sandcell__line:9:3}
    while IFS= builtin read -r __sandcell__line <&"$__sandcell__fd"; do
      __sandcell__line=${__sandcell__line%$'\r'}
      [[ -n $__sandcell__line ]] || break
      [[ ${__sandcell__line,,} != content-length:* ]] || __sandcell__size=$(( 10#${__sandcell__line##*[!0-9]} ))
    done
    (( __sandcell__size == 0 )) || IFS= builtin read -r -d '' -N "$__sandcell__size" __sandcell__body <&"$__sandcell__fd"
    [[ $__sandcell__status == [1-5][0-9][0-9] ]] && (( ${#__sandcell__body} == __sandcell__size )) ||
      __sandcell_fail 'the connection to the port for tools broke; a call may have been made all the same'
    (( __sandcell__status < 400 )) || __sandcell_fail "$__sandcell__body"
    builtin printf %s "$__sandcell__body" && { [[ -z $__sandcell__body || $__sandcell__body == *$'\n' ]] || builtin echo; }
  }

  [[ $1 != @(describe|call) || $2 == ?*.?* ]] || builtin set --
  case $1:$# in
    servers:1) __sandcell_ask GET /v1/servers ;;
    list:1) __sandcell_ask GET /v1/tools ;;
    list:2)
      __sandcell_url __sandcell__server "$2"
      __sandcell_ask GET "/v1/tools?server=$__sandcell__server" ;;
    search:[!1]*|search:1?*)
      __sandcell_url __sandcell__words "${*:2}"
      __sandcell_ask GET "/v1/tools?limit=10&query=$__sandcell__words" ;;
    describe:2)
      __sandcell_url __sandcell__server "${2%%.*}"
      __sandcell_url __sandcell__tool "${2#*.}"
      __sandcell_ask GET "/v1/tools?server=$__sandcell__server&tool=$__sandcell__tool" ;;
    call:[23])
      __sandcell_string __sandcell__server "${2%%.*}"
      __sandcell_string __sandcell__tool "${2#*.}"
      __sandcell__arguments=${3:-'{}'}
      [[ $__sandcell__arguments != - ]] || IFS= builtin read -r -d '' __sandcell__arguments
      # The arguments have their own lines, so that an error about them names the column in them.
      __sandcell_ask POST /v1/call "{\"server\":$__sandcell__server,\"tool\":$__sandcell__tool,\"arguments\":
$__sandcell__arguments
}" ;;
    help:1|-h:1|--help:1) builtin printf '%s\n' "$__sandcell__usage" ;;
    *) builtin printf '%s\n' "$__sandcell__usage" >&2; builtin exit 2 ;;
  esac
)
