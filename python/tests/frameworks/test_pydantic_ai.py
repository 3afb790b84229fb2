"""The adapter for Pydantic AI, with the real package: its own rules for workspaces, and agents with its fake models."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from conftest import blocks_of_guide

pytest.importorskip("pydantic_ai", reason="needs pydantic_ai")

from pydantic_ai import Agent, BinaryImage, ModelResponse, RunContext, TextPart, ToolCallPart
from pydantic_ai.messages import ToolReturnPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.workspaces import WorkspaceRef, WorkspaceUnavailableError
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

from sandcell.pydantic_ai import SandcellToolset, SandcellWorkspace, SandcellWorkspaceBackend

#: The smallest PNG, as code that shows it.
SHOW_IMAGE = """
import base64
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
class Picture:
    def _repr_png_(self):
        return base64.b64decode(PNG)
Picture()
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class TestWorkspace(WorkspaceBackendSuite):  # type: ignore[misc]
    """The rules that the framework publishes for backends."""

    @pytest.fixture
    async def capability(self) -> AsyncIterator[SandcellWorkspace]:
        async with SandcellWorkspace() as capability:
            yield capability

    @pytest.fixture
    def fresh_backend(self, capability: SandcellWorkspace) -> Callable[[], Any]:
        return lambda: capability.get_workspace(None, ref=None)

    @pytest.fixture
    def backend(self, fresh_backend: Callable[[], Any]) -> Any:
        return fresh_backend()

    @pytest.fixture
    def attach_backend(self, capability: SandcellWorkspace) -> Callable[[WorkspaceRef], Any]:
        return lambda ref: capability.get_workspace(None, ref=ref)

    @pytest.fixture
    def destroy_environment(self) -> Callable[[Any], Awaitable[None]]:
        async def destroy(backend: SandcellWorkspaceBackend) -> None:
            await backend.sandbox.close()

        return destroy


def scripted(*calls: tuple[str, dict[str, Any]]) -> tuple[FunctionModel, list[Any]]:
    """Returns a model that calls tools one after the other, and the list of what they answer."""
    steps = list(calls)
    answers: list[Any] = []

    def respond(messages: list[Any], info: Any) -> ModelResponse:
        answers.extend(part.content for part in messages[-1].parts if isinstance(part, ToolReturnPart))
        if not steps:
            return ModelResponse(parts=[TextPart("done")])
        name, arguments = steps.pop(0)
        return ModelResponse(parts=[ToolCallPart(name, arguments)])

    return FunctionModel(respond), answers


@pytest.mark.anyio
async def test_an_agent_runs_code_and_sees_plots() -> None:
    model, answers = scripted(
        ("run_code", {"code": "x = 40"}),
        ("run_code", {"code": "x + 2"}),
        ("run_code", {"code": SHOW_IMAGE}),
        ("run_code", {"code": "1 / 0"}),
    )
    toolset = SandcellToolset()
    assert (await Agent(model, toolsets=[toolset]).run("go")).output == "done"
    await toolset.close()
    assert "42" in str(answers[1])
    assert [part.media_type for part in answers[2] if isinstance(part, BinaryImage)] == ["image/png"]
    assert "ZeroDivisionError" in str(answers[3])


@pytest.mark.anyio
async def test_an_agent_uses_files_and_the_shell() -> None:
    model, answers = scripted(
        ("write_file", {"path": "a/b.txt", "content": "one\ntwo\n"}),
        ("run_command", {"command": "wc -l < a/b.txt; exit 3"}),
        ("read_file", {"path": "a/b.txt"}),
        ("read_file", {"path": "missing"}),
    )
    toolset = SandcellToolset()
    await Agent(model, toolsets=[toolset]).run("go")
    await toolset.close()
    assert answers[0] == "8 bytes were written"
    assert "2" in answers[1]
    assert "3" in answers[1]
    assert answers[2] == "one\ntwo\n"
    assert "does not exist" in answers[3]


@pytest.mark.anyio
async def test_a_tool_reaches_the_workspace_and_a_later_run_continues_in_it() -> None:
    def respond(messages: list[Any], info: Any) -> ModelResponse:
        last = messages[-1].parts[-1]
        return ModelResponse(parts=[TextPart(last.content) if isinstance(last, ToolReturnPart) else ToolCallPart("count")])

    async with SandcellWorkspace() as workspace:
        agent = Agent(FunctionModel(respond), capabilities=[workspace])

        @agent.tool  # type: ignore[untyped-decorator]
        async def count(ctx: RunContext[None]) -> str:
            result = await ctx.workspace.run("echo run >> runs; cat runs", shell=True)
            return str(result.stdout)

        first = await agent.run("go")
        second = await agent.run("again", message_history=first.all_messages())
        other = await agent.run("elsewhere")
    assert first.workspace.ref.provider == "sandcell"
    assert second.workspace.ref == first.workspace.ref != other.workspace.ref
    assert [result.output for result in (first, second, other)] == ["run\n", "run\nrun\n", "run\n"]


@pytest.mark.anyio
async def test_a_ref_of_another_sandbox_is_never_replaced_by_a_new_one() -> None:
    capability = SandcellWorkspace()
    assert capability.get_workspace(None, ref=WorkspaceRef(provider="local", id="/")) is None
    gone = capability.get_workspace(None, ref=WorkspaceRef(provider="sandcell", id="sb_none"))
    assert gone is not None
    for call in (gone.working_dir(), gone.run(["true"]), gone.stat("/tmp"), gone.read_bytes("/tmp/x")):
        with pytest.raises(WorkspaceUnavailableError):
            await call
    assert gone.sandbox.id is None


def test_the_guide_runs() -> None:
    blocks = blocks_of_guide("python-pydantic-ai")
    assert blocks
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
