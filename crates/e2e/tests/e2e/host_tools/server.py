"""An MCP server on standard input and output, for tests of tools of the host. Standard library only.

Its tools do what hostile or broken servers do, too. The variable STUB_LOG names a file that gets a line for every request
and notification.
"""

import json
import os
import sys
import threading
import time

LOG = os.environ.get("STUB_LOG")
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
sending = threading.Lock()
cancelled = {}


def schema(required=(), **properties):
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


NUMBER = {"type": "number", "description": "a number"}
TEXT = {"type": "string"}
TOOLS = [
    ("add", "Adds two numbers.", schema(("a", "b"), a=NUMBER, b=NUMBER), True),
    ("echo", "Returns its text.", schema(("text",), text=TEXT), True),
    ("echo_any", "Returns any value.", {"type": "object"}, True),
    ("store", "Stores a value.", schema(("key", "value"), key=TEXT, value={}), False),
    ("delete_all", "Deletes everything.", schema(), False),
    ("picture", "Returns a picture.", schema(), True),
    ("parts", "Returns two texts.", schema(), True),
    ("fail", "Reports an error.", schema(), True),
    ("slow", "Waits.", schema(("seconds",), seconds=NUMBER), True),
    ("huge", "Returns a large text.", schema(("mib",), mib={"type": "integer"}), True),
    ("deep", "Returns a deep value.", schema(("depth",), depth={"type": "integer"}), True),
    ("garbage", "Answers with something that is not JSON, then with the result.", schema(), True),
    ("die", "Ends the server.", schema(), True),
    ("environment", "Returns the names of the server's variables.", schema(), True),
    ("odd-name.x", "Has a name that is no identifier.", schema(), True),
]


def log(line):
    if LOG:
        with open(LOG, "a") as file:
            file.write(line + "\n")


def send(message):
    raw(json.dumps(message))


def raw(text):
    with sending:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def text(value):
    return {"content": [{"type": "text", "text": value}]}


def structured(value):
    return {"content": [{"type": "text", "text": json.dumps(value)}], "structuredContent": value}


def run(name, arguments, cancel):
    if name == "add":
        return structured({"sum": arguments["a"] + arguments["b"]})
    if name == "echo":
        return text(arguments["text"])
    if name == "echo_any":
        return structured(arguments)
    if name == "store":
        return text("stored " + arguments["key"])
    if name == "delete_all":
        return text("deleted")
    if name == "picture":
        return {"content": [{"type": "image", "mimeType": "image/png", "data": PICTURE}]}
    if name == "parts":
        return {"content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}
    if name == "fail":
        return {"content": [{"type": "text", "text": "no such repository"}], "isError": True}
    if name == "slow":
        cancel.wait(arguments["seconds"])
        return text("cancelled" if cancel.is_set() else "done")
    if name == "huge":
        return text("x" * (arguments["mib"] << 20))
    if name == "die":
        os._exit(3)
    if name == "environment":
        return structured({"names": sorted(os.environ)})
    if name == "odd-name.x":
        return text("odd")
    raise KeyError(name)


def call(message):
    ident, params = message["id"], message["params"]
    name, arguments = params["name"], params.get("arguments") or {}
    log("call " + name + " " + json.dumps(arguments, sort_keys=True)[:500])
    if name == "deep":
        depth = arguments["depth"]
        value = "[" * depth + "]" * depth
        raw('{"jsonrpc":"2.0","id":%s,"result":{"content":[],"structuredContent":%s}}' % (json.dumps(ident), value))
        return
    if name == "garbage":
        raw("this is not JSON")
        raw('{"jsonrpc":"2.0","id":"someone else","result":{}}')
        raw("\x00\xff" * 10)
    cancel = cancelled.setdefault(ident, threading.Event())
    try:
        result = text("after garbage") if name == "garbage" else run(name, arguments, cancel)
        send({"jsonrpc": "2.0", "id": ident, "result": result})
    except KeyError:
        send({"jsonrpc": "2.0", "id": ident, "error": {"code": -32602, "message": "unknown tool " + name}})


def main():
    print("stub server starts", file=sys.stderr)
    time.sleep(float(os.environ.get("STUB_STARTS_IN", "0")))
    if os.environ.get("STUB_FAILS"):
        print("the server fails as its settings ask; secret path /srv/stub", file=sys.stderr)
        sys.exit(7)
    for line in sys.stdin:
        message = json.loads(line)
        method = message.get("method")
        if method == "initialize":
            version = message["params"]["protocolVersion"]
            result = {
                "protocolVersion": version,
                "capabilities": {"tools": {"listChanged": True}},
                "serverInfo": {"name": "stub", "version": "1"},
            }
            send({"jsonrpc": "2.0", "id": message["id"], "result": result})
        elif method == "tools/list":
            tools = [
                {"name": name, "description": about, "inputSchema": inputs, "annotations": {"readOnlyHint": safe}}
                for name, about, inputs, safe in TOOLS
            ]
            send({"jsonrpc": "2.0", "id": message["id"], "result": {"tools": tools}})
        elif method == "tools/call":
            threading.Thread(target=call, args=(message,), daemon=True).start()
        elif method == "notifications/cancelled":
            log("cancelled " + str(message["params"].get("requestId")))
            cancelled.setdefault(message["params"].get("requestId"), threading.Event()).set()
        elif "id" in message and method:
            send({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "unknown method"}})
    log("end of input")


main()
