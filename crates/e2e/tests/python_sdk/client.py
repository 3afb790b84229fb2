"""The main job as the official MCP SDK for Python sees it: `client.py auto|legacy SERVER ARGUMENT…`, where SERVER is a
program for standard input and output, or the address of one that runs (TOKEN in the environment is sent along).

Run by the end-to-end tests. Prints one line a step and ends with status 0 only when every step was as expected.
"""

import base64
import os
import sys

import anyio
import httpx2
from mcp import StdioServerParameters
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

EXPECTED_TOOLS = {
    "execute_code",
    "create_run_close",
    "create_sandbox",
    "close_sandbox",
    "get_sandbox_status",
    "list_files",
    "read_file",
    "write_file",
    "upload_file",
    "get_execution_history",
    "reset_session_state",
}


def check(what, holds, detail=""):
    """Prints the step; ends the program when it failed."""
    print(f"{'ok' if holds else 'FAILED'}: {what}", flush=True)
    if not holds:
        sys.exit(f"{what}: {detail}")


def text(result):
    """All text of a tool's result."""
    return "\n".join(block.text for block in result.content if block.type == "text")


def wire(model):
    """The model as it went over the wire."""
    return model.model_dump(by_alias=True, mode="json")


def execution(result):
    """What programs read of an execution."""
    return wire(result)["_meta"]["sandcell/execution"]


async def introductions(client, mode):
    expected = {"auto": "2026-07-28", "legacy": "2025-11-25"}[mode]
    check("the protocol version", client.protocol_version == expected, client.protocol_version)
    check("the server's name", client.server_info.name == "sandcell", client.server_info)
    check("instructions for the model", "python" in (client.instructions or ""), client.instructions)
    listed = await client.list_tools()
    names = {tool.name for tool in listed.tools}
    check("the tools", EXPECTED_TOOLS <= names, names)
    described = all(tool.description and tool.input_schema for tool in listed.tools)
    check("every tool is described", described)


async def a_session(client):
    first = await client.call_tool("execute_code", {"code": "x = 20\nprint('made')"})
    check("code runs", "made" in text(first), text(first))
    second = await client.call_tool("execute_code", {"code": "x += 1\nx * 2"})
    check("variables stay", "42" in text(second), text(second))
    same = execution(first)["sandbox_id"] == execution(second)["sandbox_id"]
    check("in the same sandbox", same)
    failed = await client.call_tool("execute_code", {"code": "1 / 0"})
    check("an exception is a normal result", not wire(failed).get("isError"), wire(failed))
    check("and is named", "ZeroDivisionError" in text(failed), text(failed))
    slow = await client.call_tool("execute_code", {"code": "while True: pass", "timeout_s": 1})
    check("a time-out is named", execution(slow)["status"] == "timeout", execution(slow))
    after = await client.call_tool("execute_code", {"code": "print(x)"})
    check("and costs no variables", "21" in text(after), text(after))


async def files(client):
    payload = os.urandom(5000)
    encoded = base64.b64encode(payload).decode()
    await client.call_tool("upload_file", {"path": "in.bin", "content_base64": encoded})
    code = "data = open('in.bin', 'rb').read()\nopen('out.bin', 'wb').write(data[::-1])"
    await client.call_tool("execute_code", {"code": code})
    read = await client.call_tool("read_file", {"path": "out.bin"})
    links = [block for block in read.content if block.type == "resource_link"]
    check("a binary file comes as a link", len(links) == 1, wire(read))
    resource = await client.read_resource(links[0].uri)
    blob = base64.b64decode(resource.contents[0].blob)
    check("and its bytes are right", blob == payload[::-1])
    listed = await client.call_tool("list_files", {})
    check("files are listed", "in.bin" in text(listed) and "out.bin" in text(listed), text(listed))


async def mistakes(client):
    wrong = await client.call_tool("execute_code", {"code": "1", "sandbox_id": "sbnone"})
    check("an unknown sandbox is a tool error", wire(wrong)["isError"] is True, wire(wrong))
    check("that is named", "not_found" in text(wrong), text(wrong))
    try:
        await client.call_tool("no_such_tool", {})
    except MCPError as error:
        check("an unknown tool is a protocol error", True, error)
    else:
        check("an unknown tool is a protocol error", False)


async def many_at_once(client):
    results = {}

    async def one(n):
        results[n] = text(await client.call_tool("create_run_close", {"code": f"print({n} * 7)"}))

    async with anyio.create_task_group() as group:
        for n in range(8):
            group.start_soon(one, n)
    right = all(str(n * 7) in results[n] for n in range(8))
    check("throwaway runs at once", right, results)


async def cancelling(client):
    await client.call_tool("execute_code", {"code": "kept = 'yes'"})
    with anyio.move_on_after(1):
        await client.call_tool("execute_code", {"code": "while True: pass"})
    after = await client.call_tool("execute_code", {"code": "print(kept)"})
    check("a call that the client gave up is interrupted", "yes" in text(after), text(after))


def server(command, arguments):
    if not command.startswith("http"):
        return StdioServerParameters(command=command, args=arguments, env=dict(os.environ))
    headers = {"Authorization": f"Bearer {os.environ['TOKEN']}"} if "TOKEN" in os.environ else {}
    return streamable_http_client(command, http_client=httpx2.AsyncClient(headers=headers, timeout=60))


async def main():
    mode, command, *arguments = sys.argv[1:]
    with anyio.fail_after(120):
        async with Client(server(command, arguments), mode=mode) as client:
            await introductions(client, mode)
            await a_session(client)
            await files(client)
            await mistakes(client)
            await many_at_once(client)
            await cancelling(client)
    print("all steps passed")


if __name__ == "__main__":
    anyio.run(main)
