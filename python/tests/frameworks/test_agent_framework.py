"""The adapter for Microsoft's Agent Framework, with the real package and a scripted chat client."""

from __future__ import annotations

import asyncio
import gc
import re
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("agent_framework", reason="needs agent-framework-core")

from agent_framework import (
    Agent,
    AgentSession,
    BaseChatClient,
    ChatResponse,
    Content,
    FunctionInvocationLayer,
    Message,
    SupportsAgentRun,
)
from conftest import blocks_of_guide

from sandcell import ExpiredError, InvalidArgumentError
from sandcell.agent_framework import SandcellCodeActProvider, SandcellExecuteCodeTool


class ScriptedClient(FunctionInvocationLayer, BaseChatClient):  # type: ignore[misc]
    """Answers with calls of ``execute_code``, one for each code, and then with the last result."""

    def __init__(self, codes: Sequence[str]) -> None:
        super().__init__()
        self.codes = list(codes)
        self.options: list[Any] = []
        self.results: list[Content] = []

    async def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **_: Any) -> ChatResponse:
        assert not stream
        self.options.append(options)
        self.results += [item for item in messages[-1].contents if item.type == "function_result"]
        if self.codes:
            call = Content.from_function_call(
                call_id=str(len(self.codes)), name="execute_code", arguments={"code": self.codes.pop(0)}
            )
            return ChatResponse(messages=[Message(role="assistant", contents=[call])])
        return ChatResponse(messages=[Message(role="assistant", contents=[str(self.results[-1].result)])])


async def texts(tool: SandcellExecuteCodeTool, **arguments: str) -> list[str]:
    return [str(content.text) for content in await tool.invoke(arguments=arguments)]


def test_an_agent_runs_code_that_keeps_its_variables() -> None:
    async def main() -> None:
        client = ScriptedClient(["x = 20", "print(x + 1)\n2 * x"])
        async with SandcellCodeActProvider() as provider:
            agent = Agent(client, instructions="Be exact.", context_providers=[provider])
            assert isinstance(agent, SupportsAgentRun)
            response = await agent.run("compute")
        assert response.text == "21\nresult: 40"
        assert "execute_code" in str(client.options[0]["instructions"])
        assert [tool.name for tool in client.options[0]["tools"]] == ["execute_code"]

    asyncio.run(main())


def test_sessions_have_sandboxes_of_their_own() -> None:
    async def main() -> None:
        client = ScriptedClient([])
        async with SandcellCodeActProvider() as provider:
            agent = Agent(client, context_providers=[provider])
            first, second = agent.create_session(), agent.create_session()
            client.codes = ["x = 1"]
            await agent.run("one", session=first)
            client.codes = ["x"]
            assert "NameError" in (await agent.run("two", session=second)).text
            client.codes = ["x"]
            assert (await agent.run("three", session=first)).text == "result: 1"
            await provider.tool(first).sandbox.files.write("a.txt", "file")
            client.codes = ["open('a.txt').read()"]
            assert (await agent.run("four", session=first)).text == "result: 'file'"
            sandboxes = [provider.tool(session).sandbox for session in (first, second)]
        assert all(sandbox.closed for sandbox in sandboxes)
        with pytest.raises(ExpiredError):
            provider.tool(first)

    asyncio.run(main())


def test_a_sandbox_ends_with_its_session() -> None:
    async def main() -> None:
        provider = SandcellCodeActProvider()
        session = AgentSession()
        await texts(provider.tool(session), code="1")
        sandbox = provider.tool(session).sandbox
        assert len(provider._tools) == 1
        del session
        gc.collect()
        assert len(provider._tools) == 0
        await sandbox.close()

    asyncio.run(main())


def test_what_the_model_can_correct_is_text() -> None:
    async def main() -> None:
        async with SandcellExecuteCodeTool(timeout=1) as tool:
            assert "ZeroDivisionError" in (await texts(tool, code="1 / 0"))[0]
            assert await texts(tool, code="echo $((6 * 7))", language="bash") == ["42"]
            assert "klingon" in (await texts(tool, code="nuqneH", language="klingon"))[0]
            assert "timeout: " in (await texts(tool, code="while True: pass"))[0]

    asyncio.run(main())


def test_pictures_are_content() -> None:
    code = (
        "class Picture:\n"
        "    def _repr_png_(self):\n"
        "        import base64\n"
        "        return base64.b64decode('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAA"
        "AABJRU5ErkJggg==')\n"
        "Picture()"
    )

    async def main() -> None:
        async with SandcellExecuteCodeTool() as tool:
            contents = await tool.invoke(arguments={"code": code})
        assert [content.type for content in contents] == ["text", "data"]
        assert contents[1].media_type == "image/png"

    asyncio.run(main())


def test_a_sandbox_that_has_ended_is_replaced_and_the_model_is_told() -> None:
    async def main() -> None:
        async with SandcellExecuteCodeTool(lifetime=1) as tool:
            first = tool.sandbox
            answer = ""
            while "start again" not in answer:
                answer = (await texts(tool, code="x = 1"))[0]
                await asyncio.sleep(0.1)
            assert tool.sandbox is not first
            assert (await texts(tool, code="print('new')"))[0] == "new"

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_closed_tool_is_an_error() -> None:
    async def main() -> None:
        tool = SandcellExecuteCodeTool()
        await tool.close()
        with pytest.raises(ExpiredError):
            await texts(tool, code="1")

    asyncio.run(main())


def test_cancelling_ends_the_code_inside() -> None:
    async def main() -> None:
        async with SandcellExecuteCodeTool(timeout=300) as tool:
            await tool.sandbox.files.write("state", "waiting")
            code = "open('state', 'w').write('running')\nimport time\ntime.sleep(280)"
            task = asyncio.create_task(tool.invoke(arguments={"code": code}))
            while await tool.sandbox.files.read_text("state") != "running":
                await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await texts(tool, code="print('free')") == ["free"]

    asyncio.run(asyncio.wait_for(main(), 120))


def test_options_are_checked_when_the_provider_is_made() -> None:
    assert SandcellExecuteCodeTool(approval_mode="always_require").approval_mode == "always_require"
    with pytest.raises(InvalidArgumentError, match="memory_mb"):
        SandcellCodeActProvider(memory_mb=-1)
    with pytest.raises(TypeError, match="memory"):
        SandcellCodeActProvider(memory=1)


@pytest.mark.parametrize("block", blocks_of_guide("python-agent-framework"), ids=lambda block: "block")
def test_the_guide_runs(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block, "python-agent-framework.md", "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert all(line in printed for line in re.findall(r"# prints (.*)", block))
