"""What the server says and asks while it works, as the official MCP SDK for Python sees it: `talking.py TOPIC auto|legacy
SERVER ARGUMENT…`, where SERVER is a program for standard input and output, or the address of one that runs.

Run by the end-to-end tests. Prints one line a step and ends with status 0 only when every step was as expected.
"""

import os
import sys

import anyio
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from mcp.types import ElicitResult

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


class User:
    """Answers what the server asks: a list of answers, one for each question."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    async def __call__(self, context, params):
        self.asked.append(params.message)
        answer = self.answers.pop(0)
        if answer == "silence":
            await anyio.sleep(600)
        if answer == "no tick":
            return ElicitResult(action="accept", content={"allow": False})
        if answer == "accept":
            return ElicitResult(action="accept", content={"allow": True})
        return ElicitResult(action=answer)


def refused(what, result, code, word):
    said = text(result)
    check(what, wire(result).get("isError") and code in said and word in said, said)


async def asking(mode, where):
    """The index has demo-one 1.0, which needs helper-one; both, and every host, are left to the user."""
    user = User("decline", "cancel", "no tick", "accept", "accept", "decline", "accept", "accept", "decline")
    async with Client(where(), mode=mode, elicitation_callback=user) as client:
        one = {"packages": ["demo-one==1.0"]}
        for answer in ("declined", "cancelled", "not ticked"):
            no = await client.call_tool("install_package", one)
            refused(f"what was {answer} is not installed", no, "package_not_allowed", "declined")
        check("the question names it", "demo-one==1.0" in user.asked[0], user.asked)
        inside = await client.call_tool("execute_code", {"code": "!pip install demo-one==1.0"})
        check("code inside asks nobody", len(user.asked) == 3, user.asked)
        check("and is told how", "install_package" in text(inside) and "not allowed yet" in text(inside), text(inside))
        yes = await client.call_tool("install_package", one)
        check("with a yes it is there", "demo-one 1.0" in text(yes), text(yes))
        check("and what it needs", "helper-one 1.5" in text(yes), text(yes))
        used = await client.call_tool("execute_code", {"code": "import demo_one\nprint(demo_one.answer)"})
        check("and can be used", "42" in text(used), text(used))
        inside = await client.call_tool("execute_code", {"code": "!pip install demo-one==2.0"})
        check("a yes holds for one call", "not allowed yet" in text(inside), text(inside))
        check("code inside asks nobody still", len(user.asked) == 4, user.asked)
        fresh = await client.call_tool("create_sandbox", one)
        check("a new sandbox asks anew", len(user.asked) == 5 and not wire(fresh).get("isError"), text(fresh))
        no = await client.call_tool("create_sandbox", {"network": ["api.example.com"]})
        refused("a host that was declined is not reached", no, "network_denied", "declined")
        both = {"code": "import demo_one\nprint(demo_one.answer)", "network": ["api.example.com"], **one}
        yes = await client.call_tool("create_run_close", both)
        check("one question for both", "demo-one" in user.asked[6] and "api.example.com" in user.asked[6], user.asked)
        check("and both are there", "42" in text(yes), text(yes))
        denied = await client.call_tool("install_package", {"packages": ["evil"]})
        refused("what is denied is no question", denied, "package_not_allowed", "denied")
        check("indeed", len(user.asked) == 7, user.asked)
        plain = await client.call_tool("create_sandbox", {"network": ["allowed.example"]})
        check("nor is what is allowed", len(user.asked) == 7 and not wire(plain).get("isError"), text(plain))
    async with Client(where(), mode=mode) as client:
        no = await client.call_tool("install_package", one)
        refused("a client that cannot ask is told so", no, "package_not_allowed", "packages.allow")


async def silence(mode, where):
    """A user who does not answer costs the call its package, and nothing else."""
    user = User("silence")
    async with Client(where(), mode=mode, elicitation_callback=user) as client:
        no = await client.call_tool("install_package", {"packages": ["demo-one"]})
        refused("no answer is no yes", no, "package_not_allowed", "did not answer")
        after = await client.call_tool("execute_code", {"code": "print('goes on')"})
        check("the session goes on", "goes on" in text(after), text(after))


async def forged(mode, where):
    """Answers that nobody asked for, of another call, and used twice."""
    async with Client(where(), mode=mode, elicitation_callback=User()) as client:
        session = client.session

        async def call(packages, state=None, answer=None):
            responses = None if answer is None else {"consent": answer}
            arguments = {"packages": packages}
            return await session.call_tool(
                "install_package",
                arguments,
                input_responses=responses,
                request_state=state,
                allow_input_required=True,
            )

        async def fails(what, *arguments):
            try:
                result = await call(*arguments)
            except MCPError as error:
                check(what, "again" in error.message, error)
            else:
                check(what, False, wire(result))

        yes = ElicitResult(action="accept", content={"allow": True})
        unasked = await call(["demo-one==1.0"], None, yes)
        check("an answer to no question is asked about", wire(unasked)["resultType"] == "input_required", wire(unasked))
        state = unasked.request_state
        await fails("a seal of another call is none", ["helper-one"], state, yes)
        await fails("a seal that was changed is none", ["demo-one==1.0"], state[:-2] + "AA", yes)
        done = await call(["demo-one==1.0"], state, yes)
        check("the right one is taken", "demo-one 1.0" in text(done), wire(done))
        await fails("once", ["demo-one==1.0"], state, yes)
        again = await call(["demo-one==1.0"])
        none = await call(["demo-one==1.0"], again.request_state)
        refused("a seal without an answer is no yes", none, "package_not_allowed", "did not answer")


async def main():
    topic, mode, command, *arguments = sys.argv[1:]
    with anyio.fail_after(120):
        await {"expiry": expiry, "asking": asking, "silence": silence, "forged": forged}[topic](mode, lambda: server(command, arguments))
    print("all steps passed")


anyio.run(main)
