"""The adapter for AutoGen, with the real packages and a replayed model."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("autogen_core", reason="needs autogen-core")

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor
from conftest import blocks_of_guide

from sandcell import ExpiredError, InvalidArgumentError
from sandcell.autogen import SandcellCodeExecutor

if TYPE_CHECKING:
    from sandcell.autogen import SandcellCodeResult


async def execute(executor: SandcellCodeExecutor, *blocks: tuple[str, str]) -> SandcellCodeResult:
    return await executor.execute_code_blocks([CodeBlock(code, language) for language, code in blocks], CancellationToken())


def test_blocks_of_several_languages_share_variables_and_files() -> None:
    async def main() -> None:
        async with SandcellCodeExecutor() as executor:
            result = await execute(
                executor,
                ("python", "open('a.txt', 'w').write('é')\nx = 20"),
                ("sh", "cat a.txt"),
                ("Python", "print(x + 1)\nx * 2.1"),
            )
            assert (result.exit_code, result.output.splitlines()[1:]) == (0, ["é", "21", "result: 42.0"])
            assert [run.language for run in result.runs] == ["python", "bash", "python"]
            assert (await execute(executor, ("", "print(x)"))).output == "20"

    asyncio.run(main())


def test_the_first_block_that_fails_ends_the_execution() -> None:
    async def main() -> None:
        async with SandcellCodeExecutor() as executor:
            result = await execute(executor, ("python", "print('before')\n1 / 0"), ("python", "open('ran', 'w')"))
            assert (result.exit_code, len(result.runs)) == (1, 1)
            assert result.output.startswith("before\n")
            assert "ZeroDivisionError" in result.output
            assert not await executor.sandbox.files.exists("ran")
            assert (await execute(executor, ("bash", "exit 7"))).exit_code == 7

    asyncio.run(main())


def test_what_the_model_can_correct_is_a_result() -> None:
    async def main() -> None:
        async with SandcellCodeExecutor() as executor:
            result = await execute(executor, ("python", "1"), ("klingon", "nuqneH"))
            assert result.exit_code == 1
            assert "klingon" in result.output
            assert "What to do:" in result.output
            assert (await execute(executor, ("python", "print('\ud800')"))).exit_code == 1

    asyncio.run(main())


def test_code_that_runs_too_long_ends_with_124() -> None:
    async def main() -> None:
        async with SandcellCodeExecutor(timeout=1) as executor:
            result = await execute(executor, ("python", "x = 1\nwhile True: pass"))
            assert result.exit_code == 124
            assert "timeout: " in result.output
            assert (await execute(executor, ("python", "x"))).output == "result: 1"

    asyncio.run(main())


def test_the_cancellation_token_ends_the_code_inside() -> None:
    async def main() -> None:
        async with SandcellCodeExecutor(timeout=300) as executor:
            await executor.sandbox.files.write("state", "waiting")
            code = "open('state', 'w').write('running')\nimport time\ntime.sleep(280)"
            token = CancellationToken()
            task = asyncio.create_task(executor.execute_code_blocks([CodeBlock(code, "python")], token))
            while await executor.sandbox.files.read_text("state") != "running":
                await asyncio.sleep(0.02)
            token.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await execute(executor, ("python", "print('free')"))).output == "free"
            with pytest.raises(asyncio.CancelledError):
                await executor.execute_code_blocks([CodeBlock("open('late', 'w')", "python")], token)
            assert not await executor.sandbox.files.exists("late")

    asyncio.run(asyncio.wait_for(main(), 120))


def test_restart_forgets_variables_and_keeps_files() -> None:
    async def main() -> None:
        async with SandcellCodeExecutor() as executor:
            await execute(executor, ("python", "x = 1\nopen('kept', 'w').write('file')"))
            await executor.restart()
            assert "NameError" in (await execute(executor, ("python", "x"))).output
            assert (await execute(executor, ("bash", "cat kept"))).output == "file"

    asyncio.run(main())


def test_an_executor_starts_by_itself_stops_twice_and_starts_again() -> None:
    async def main() -> None:
        executor = SandcellCodeExecutor()
        assert (await execute(executor, ("python", "x = 1\nprint(x)"))).output == "1"
        first = executor.sandbox
        await executor.stop()
        await executor.stop()
        assert first.closed
        await executor.restart()
        assert "NameError" in (await execute(executor, ("python", "x"))).output
        await executor.stop()

    asyncio.run(main())


def test_restart_replaces_a_sandbox_that_has_ended() -> None:
    async def main() -> None:
        async with SandcellCodeExecutor() as executor:
            await executor.sandbox.close()
            with pytest.raises(ExpiredError):
                await execute(executor, ("python", "1"))
            await executor.restart()
            assert (await execute(executor, ("python", "print(1)"))).output == "1"

    asyncio.run(main())


def test_a_dumped_executor_is_loaded_with_its_options_and_without_its_token() -> None:
    executor = SandcellCodeExecutor(timeout=5, memory_mb=300, env={"A": "b"}, packages=["six"], label=None)
    dumped = executor.dump_component()
    assert dumped.provider == "sandcell.autogen.SandcellCodeExecutor"
    assert dumped.config == {"timeout": 5, "memory_mb": 300, "env": {"A": "b"}, "packages": ["six"]}
    loaded = CodeExecutor.load_component(json.loads(dumped.model_dump_json()))
    assert isinstance(loaded, SandcellCodeExecutor)
    assert loaded.dump_component() == dumped
    remote = SandcellCodeExecutor(url="http://localhost:1", token="secret").dump_component()
    assert remote.config == {"url": "http://localhost:1"}


def test_wrong_options_are_named_when_the_executor_is_made() -> None:
    with pytest.raises(InvalidArgumentError, match="timeout"):
        SandcellCodeExecutor(timeout=-1)
    with pytest.raises(TypeError, match="time_out"):
        SandcellCodeExecutor(time_out=1)


def test_an_agent_with_the_code_execution_tool() -> None:
    from autogen_agentchat import agents
    from autogen_core import FunctionCall
    from autogen_core.models import CreateResult, ModelFamily, RequestUsage
    from autogen_ext.models.replay import ReplayChatCompletionClient
    from autogen_ext.tools.code_execution import PythonCodeExecutionTool

    async def main() -> Any:
        call = FunctionCall(id="1", name="CodeExecutor", arguments='{"code": "print(6 * 7)"}')
        model = ReplayChatCompletionClient(
            [CreateResult(finish_reason="function_calls", content=[call], usage=RequestUsage(1, 1), cached=False)],
            {
                "vision": False,
                "function_calling": True,
                "json_output": False,
                "family": ModelFamily.UNKNOWN,
                "structured_output": False,
            },
        )
        async with SandcellCodeExecutor() as executor:
            tool = PythonCodeExecutionTool(executor)
            assert PythonCodeExecutionTool.load_component(tool.dump_component()).name == "CodeExecutor"
            agent = agents.AssistantAgent("coder", model, tools=[tool])
            return await agent.run(task="What is six times seven?")

    assert asyncio.run(main()).messages[-1].content == "42"


def test_an_agent_repairs_code_that_failed() -> None:
    from autogen_agentchat import agents
    from autogen_agentchat.messages import CodeExecutionEvent
    from autogen_ext.models.replay import ReplayChatCompletionClient

    async def main() -> Any:
        async with SandcellCodeExecutor() as executor:
            agent = agents.CodeExecutorAgent(
                "coder",
                executor,
                model_client=ReplayChatCompletionClient(
                    [
                        "```python\nprint(undefined)\n```",
                        '{"retry": true, "reason": "the name is missing"}',
                        "```python\nprint('repaired')\n```",
                        "done",
                    ],
                    {
                        "vision": False,
                        "function_calling": False,
                        "json_output": True,
                        "family": "unknown",
                        "structured_output": True,
                    },
                ),
                max_retries_on_error=1,
            )
            messages = [message async for message in agent.run_stream(task="print it")]
            await agent.on_reset(CancellationToken())
            return messages

    messages = asyncio.run(main())
    results = [message.result for message in messages if isinstance(message, CodeExecutionEvent)]
    assert [result.exit_code for result in results] == [1, 0]
    assert "NameError" in results[0].output
    assert (results[1].output, messages[-1].messages[-1].content) == ("repaired", "done")


@pytest.mark.parametrize("block", blocks_of_guide("python-autogen"), ids=lambda block: "block")
def test_the_guide_runs(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block, "python-autogen.md", "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert all(line in printed for line in re.findall(r"# prints (.*)", block))
