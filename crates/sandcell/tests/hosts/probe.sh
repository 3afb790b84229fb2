#!/bin/sh
# Runs the three commands that every row judges, and leaves what they say in $W. A row ends with `exec $AS sh "$PROBE"`.
# $WITH, when a row sets it, stands before the program: a limit for it alone.
cd "$W" || exit 1

$WITH "$BIN" run print.py >run.out 2>run.err </dev/null
echo $? >run.status

# One request after the other: the next is sent when the last was answered, or when the server is gone.
ask() {
  sent=$((sent + 1))
  printf '%s\n' "$1"
  until [ "$(grep -c '"id":[0-9]' serve.out)" -ge "$sent" ] || [ -e serve.status ]; do sleep 0.05; done
}
sent=0
: >serve.out
{
  ask '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"hosts","version":"1"}}}'
  printf '%s\n' '{"jsonrpc":"2.0","method":"notifications/initialized"}'
  ask '{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"execute_code","arguments":{"code":"x = 1"}}}'
  ask '{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"execute_code","arguments":{"code":"x + 1"}}}'
} | {
  $WITH "$BIN" serve >>serve.out 2>serve.err
  echo $? >serve.status
}

$WITH "$BIN" doctor --json >doctor.out 2>doctor.err </dev/null
echo $? >doctor.status
