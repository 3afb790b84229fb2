"""What the server says and asks while it works, as the official MCP SDK for Python sees it: `talking.py TOPIC auto|legacy
SERVER ARGUMENT…`, where SERVER is a program for standard input and output, or the address of one that runs.

Run by the end-to-end tests. Prints one line a step and ends with status 0 only when every step was as expected.
"""

import os
import sys

import anyio
from mcp.client import Client

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from client import check, server, text, wire  # noqa: E402


class Heard:
    """The log messages of one client."""

    def __init__(self):
        self.all = []
        self.more = anyio.Event()

    async def __call__(self, params):
        self.all.append(params)
        self.more.set()

    def about(self, sandbox):
        return [said for said in self.all if said.data.get("sandbox_id") == sandbox]

    async def wait_for(self, sandbox):
        with anyio.fail_after(30):
            while not self.about(sandbox):
                self.more = anyio.Event()
                await self.more.wait()
        return self.about(sandbox)[0]


async def expiry(mode, where):
    """A sandbox that lives for ten seconds is spoken of two seconds before its end."""
    heard, deaf, silent = Heard(), Heard(), Heard()
    async with (
        Client(where(), mode=mode, logging_callback=heard, log_level="warning") as client,
        Client(where(), mode=mode, logging_callback=deaf, log_level="error") as other,
        Client(where(), mode=mode, logging_callback=silent) as third,
    ):
        if mode == "legacy":
            await client.set_logging_level("info")
            await other.set_logging_level("error")
        sandboxes = []
        for one in (client, other, third):
            made = await one.call_tool("create_sandbox", {"lifetime_s": 10, "label": "short"})
            sandboxes.append((one, made.structured_content["sandbox_id"]))
        own = sandboxes[0][1]
        if mode == "legacy":
            said = await heard.wait_for(own)
        else:
            # Nothing may be sent there but to a call that asks for it.
            async with anyio.create_task_group() as group:
                for one, sandbox in sandboxes:
                    arguments = {"code": "import time\ntime.sleep(9)", "sandbox_id": sandbox}
                    group.start_soon(one.call_tool, "execute_code", arguments)
                said = await heard.wait_for(own)
                group.cancel_scope.cancel()
        check("there is word of the end before it comes", 0 <= said.data["ends_in_s"] <= 2, said.data)
        check("it is a warning", said.level == "warning" and said.logger == "sandcell", said)
        check("it says what to do", "lifetime_s" in said.data["remedy"], said.data)
        check("it says which one", "short" in said.data["message"] and own in said.data["message"], said.data)
        with anyio.fail_after(30):
            while True:
                gone = await client.call_tool("get_sandbox_status", {"sandbox_id": own})
                if wire(gone).get("isError"):
                    break
                await anyio.sleep(0.2)
        check("and then it ends", "expired" in text(gone), text(gone))
        check("once is enough", len(heard.about(own)) == 1, heard.all)
        check("a higher level does not get it", not deaf.all, deaf.all)
        check("who asks for no level is not told", not silent.all, silent.all)


async def main():
    topic, mode, command, *arguments = sys.argv[1:]
    with anyio.fail_after(120):
        await {"expiry": expiry}[topic](mode, lambda: server(command, arguments))
    print("all steps passed")


anyio.run(main)
