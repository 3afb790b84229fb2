#!/bin/sh
# Runs the three commands that every row judges, and leaves what they say in $W. A row ends with `exec $AS sh "$PROBE"`.
# $WITH, when a row sets it, stands before the program: a limit for it alone.
cd "$W" || exit 1

$WITH "$BIN" run print.py >run.out 2>run.err </dev/null
echo $? >run.status

# One request after the other: the next is sent when the last was answered, or when the server is gone. Only the shell and
# `sleep` are there everywhere.
ask() {
  sent=$((sent + 1)) looks=0 answered=0
  printf '%s\n' "$1"
  until [ "$answered" -ge "$sent" ] || [ -e serve.status ] || [ "$looks" -ge 1000 ]; do
    sleep 0.05
    answered=0 looks=$((looks + 1))
    while IFS= read -r line; do
      case $line in *'"id":'[0-9]*) answered=$((answered + 1)) ;; esac
    done <serve.out
  done
}
sent=0
: >serve.out
{
  ask '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"hosts","version":"1"}}}'
  printf '%s\n' '{"jsonrpc":"2.0","method":"notifications/initialized"}'
  ask '{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"execute_code","arguments":{"language":"python","code":"x = 1"}}}'
  ask '{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"execute_code","arguments":{"language":"python","code":"x + 1"}}}'
} | {
  $WITH "$BIN" serve >>serve.out 2>serve.err
  echo $? >serve.status
}

$WITH "$BIN" doctor --json >doctor.out 2>doctor.err </dev/null
echo $? >doctor.status
