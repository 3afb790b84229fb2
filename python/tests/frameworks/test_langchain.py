"""The tools for LangChain, with the real package and its standard tests for tools."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import blocks_of_guide
from langchain_core.messages import AIMessage, ToolMessage
from langchain_tests.integration_tests import ToolsIntegrationTests
from langchain_tests.unit_tests import ToolsUnitTests

from sandcell import InvalidArgumentError, PackageNotAllowedError, Run, Sandbox, SandcellError
from sandcell.langchain import SandcellInterpreter, SandcellShell

#: A program that shows a picture without any library: the value of its last expression has one of itself.
_PICTURE = """
import struct, zlib
def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
png = b"\\x89PNG\\r\\n\\x1a\\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\\0abc")) + chunk(b"IEND", b"")
class Picture:
    def _repr_png_(self):
        return png
print("drawn")
Picture()
"""


class TestInterpreterUnit(ToolsUnitTests):  # type: ignore[misc]
    tool_constructor = SandcellInterpreter
    tool_constructor_params = {"timeout": 20}  # noqa: RUF012
    tool_invoke_params_example = {"code": "6 * 7"}  # noqa: RUF012


@pytest.mark.asyncio
@pytest.mark.filterwarnings("ignore:.*is marked with '@pytest.mark.asyncio' but it is not an async function")
class TestInterpreterIntegration(ToolsIntegrationTests):  # type: ignore[misc]
    tool_constructor = SandcellInterpreter
    tool_constructor_params = {"timeout": 20}  # noqa: RUF012
    tool_invoke_params_example = {"code": "6 * 7"}  # noqa: RUF012


class TestShellUnit(ToolsUnitTests):  # type: ignore[misc]
    tool_constructor = SandcellShell
    tool_invoke_params_example = {"command": "echo hello"}  # noqa: RUF012


@pytest.mark.asyncio
@pytest.mark.filterwarnings("ignore:.*is marked with '@pytest.mark.asyncio' but it is not an async function")
class TestShellIntegration(ToolsIntegrationTests):  # type: ignore[misc]
    tool_constructor = SandcellShell
    tool_invoke_params_example = {"command": "echo hello"}  # noqa: RUF012


@pytest.fixture
def interpreter() -> Iterator[SandcellInterpreter]:
    with SandcellInterpreter(timeout=20) as interpreter:
        yield interpreter


def call(tool: Any, **arguments: Any) -> ToolMessage:
    return tool.invoke({"name": tool.name, "args": arguments, "id": "1", "type": "tool_call"})


def test_variables_stay_and_the_run_is_the_artifact(interpreter: SandcellInterpreter) -> None:
    call(interpreter, code="x = 40")
    answer = call(interpreter, code="print('log')\nx + 2")
    assert isinstance(answer.artifact, Run)
    assert (answer.artifact.result, answer.artifact.stdout) == ("42", "log\n")
    assert answer.content == answer.artifact.text
    assert "42" in answer.content


def test_pictures_are_image_blocks(interpreter: SandcellInterpreter) -> None:
    answer = call(interpreter, code=_PICTURE)
    assert [block["type"] for block in answer.content_blocks] == ["text", "image"]
    text, image = answer.content_blocks
    assert "drawn" in text["text"]
    assert image["mime_type"] == "image/png"
    assert answer.artifact.images[0].data.startswith(b"\x89PNG")


def test_code_that_fails_is_an_answer(interpreter: SandcellInterpreter) -> None:
    answer = call(interpreter, code="1 / 0")
    assert "ZeroDivisionError" in answer.content
    assert (answer.status, answer.artifact.status) == ("success", "error")


def test_code_that_takes_too_long_is_told_to_the_model() -> None:
    with SandcellInterpreter(timeout=1) as interpreter:
        answer = call(interpreter, code="print('begun', flush=True)\nwhile True: pass")
        assert answer.content.startswith("begun\n")
        assert "\ntimeout: " in answer.content
        assert "\ntimeout: " in call(SandcellShell(interpreter.sandbox), command="sleep 60").content


def test_errors_of_the_sandbox_are_told_to_the_model_or_raised() -> None:
    with Sandbox() as sandbox:
        interpreter = SandcellInterpreter(sandbox)
        strict = SandcellInterpreter(sandbox, handle_tool_error=False)
    answer = call(interpreter, code="1")
    assert answer.status == "error"
    assert answer.content.startswith("expired: ")
    with pytest.raises(SandcellError) as caught:
        call(strict, code="1")
    assert (caught.value.code, bool(caught.value.remedy)) == ("expired", True)
    with pytest.raises(InvalidArgumentError):
        SandcellInterpreter(sandbox, memory_mb=64)


def test_packages_that_are_not_allowed_are_told_to_the_model(interpreter: SandcellInterpreter) -> None:
    answer = call(interpreter, code="1", packages=["../evil"])
    assert answer.status == "error"
    assert answer.content.split(":")[0] in ("invalid_argument", PackageNotAllowedError.code, "package_failed")


def test_tools_share_a_sandbox_and_only_its_owner_closes_it() -> None:
    with SandcellInterpreter() as interpreter:
        with SandcellShell(interpreter.sandbox) as shell:
            answer = call(shell, command="echo hello > note; cat note; exit 4")
            assert "hello" in answer.content
            assert answer.artifact.exit_code == 4
        assert call(interpreter, code="open('note').read()").artifact.result == "'hello\\n'"
    assert call(interpreter, code="1").status == "error"


def test_cancelling_a_task_ends_its_code_and_keeps_the_variables(interpreter: SandcellInterpreter) -> None:
    async def cancel() -> Any:
        await interpreter.ainvoke({"code": "kept = 1"})
        endless = asyncio.create_task(interpreter.ainvoke({"code": "open('begun', 'w').close()\nwhile True: pass"}))
        while not await asyncio.to_thread(interpreter.sandbox.files.exists, "begun"):
            assert not endless.done()
        endless.cancel()
        with pytest.raises(asyncio.CancelledError):
            await endless
        return await interpreter.ainvoke({"code": "kept"})

    assert "1" in asyncio.run(cancel())


def test_an_agent_uses_both_tools() -> None:
    from langchain.agents import create_agent
    from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel

    class Scripted(FakeMessagesListChatModel):  # type: ignore[misc]
        def bind_tools(self, tools: Any, **_: Any) -> Any:
            return self

    def ask(name: str, **arguments: Any) -> AIMessage:
        return AIMessage(content="", tool_calls=[{"name": name, "args": arguments, "id": name, "type": "tool_call"}])

    steps = [ask("run_code", code="open('n', 'w').write('7')"), ask("run_command", command="cat n"), AIMessage("done")]
    with SandcellInterpreter() as interpreter:
        tools = [interpreter, SandcellShell(interpreter.sandbox)]
        agent = create_agent(Scripted(responses=steps), tools=tools)
        messages = asyncio.run(agent.ainvoke({"messages": [{"role": "user", "content": "write"}]}))["messages"]
    answers = {message.name: message for message in messages if isinstance(message, ToolMessage)}
    assert answers["run_command"].artifact.stdout == "7"
    assert messages[-1].content == "done"


def test_the_guide_runs() -> None:
    blocks = blocks_of_guide("python-langchain")
    assert blocks
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    assert "42" in names["answer"]
