"""The environment for Inspect, with the real package: Inspect's own checks of environments, and whole evaluations."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from conftest import blocks_of_guide

pytest.importorskip("inspect_ai", reason="needs inspect_ai")

from inspect_ai import Task
from inspect_ai import eval as evaluate
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import bash
from inspect_ai.util import OutputLimitExceededError, SandboxUnavailableError, SandboxUserUnsupportedError
from inspect_ai.util._sandbox.events import SandboxEnvironmentProxy
from inspect_ai.util._sandbox.limits import override_max_exec_output_size
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

import sandcell

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def sandbox_env(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    from sandcell.inspect_ai import SandcellSandboxEnvironment

    if request.node.originalname == "test_exec_as_user":
        request.node.add_marker(pytest.mark.xfail(reason="a sandbox has one user", raises=SandboxUserUnsupportedError))
    environments = await SandcellSandboxEnvironment.sample_init("task", None, {})
    yield environments["default"]
    await SandcellSandboxEnvironment.sample_cleanup("task", None, environments, False)


def evaluated(folder: Path, command: str, sandbox: Any = "sandcell") -> Any:
    """Evaluates one sample whose model calls the tool `bash` once; returns its log."""
    outputs = [
        ModelOutput.for_tool_call("mockllm/model", "bash", {"command": command}),
        ModelOutput.from_content("m", "done"),
    ]
    for output in outputs:
        output.usage = ModelUsage()  # Without it the mock model counts tokens, with a table that it downloads.
    task = Task(
        dataset=[Sample(input="go", files={"data/in.txt": "forty-two"}, setup="echo set up > setup.txt")],
        solver=[use_tools(bash(timeout=20)), generate()],
        sandbox=sandbox,
    )
    model = get_model("mockllm/model", custom_outputs=outputs)
    return evaluate(task, model=model, log_dir=str(folder), display="none")[0]


def answers(log: Any) -> list[str]:
    """Returns what the tools answered."""
    assert log.status == "success", log.error
    return [message.text for message in log.samples[0].messages if message.role == "tool"]


def test_an_evaluation_runs_a_tool_in_the_sandbox(tmp_path: Path) -> None:
    command = "pwd; cat data/in.txt setup.txt; whoami"
    assert answers(evaluated(tmp_path, command)) == ["/home/user\nforty-twoset up\nuser\n"]


def test_settings_come_from_a_file_or_an_object(tmp_path: Path) -> None:
    from inspect_ai.util import SandboxEnvironmentSpec

    from sandcell.inspect_ai import SandcellConfig

    file = tmp_path / "sandcell.yaml"
    file.write_text("env: {COLOR: blue}\nmemory_mb: 256\n")
    for config in (str(file), SandcellConfig(env={"COLOR": "blue"})):
        log = evaluated(tmp_path, "echo $COLOR", SandboxEnvironmentSpec("sandcell", config))
        assert answers(log) == ["blue\n"]


def test_wrong_settings_end_the_evaluation_before_any_sample(tmp_path: Path) -> None:
    file = tmp_path / "sandcell.yaml"
    file.write_text("memory: 256\n")
    with pytest.raises(sandcell.InvalidArgumentError, match="memory_mb"):
        evaluated(tmp_path, "true", ("sandcell", str(file)))


async def test_output_beyond_the_limit_is_an_error(sandbox_env: Any) -> None:
    with override_max_exec_output_size(1000), pytest.raises(OutputLimitExceededError) as caught:
        await sandbox_env.exec(["sh", "-c", "head -c 5000 /dev/zero | tr '\\0' x"])
    assert caught.value.truncated_output.startswith("xxx")


async def test_a_missing_program_is_a_result(sandbox_env: Any) -> None:
    result = await sandbox_env.exec(["no-such-program"])
    assert result.returncode == 127
    assert "no-such-program" in result.stderr


async def test_a_timeout_keeps_the_output_so_far(sandbox_env: Any) -> None:
    with pytest.raises(TimeoutError) as caught:
        await sandbox_env.exec(["sh", "-c", "echo early; sleep 60"], timeout=1)
    assert caught.value.truncated_output == "early\n"  # type: ignore[attr-defined]


async def test_a_sandbox_that_ended_is_unavailable(sandbox_env: Any) -> None:
    await sandbox_env.sandbox.close()
    for call in (sandbox_env.exec(["true"]), sandbox_env.read_file("x"), sandbox_env.write_file("x", "")):
        with pytest.raises(SandboxUnavailableError):
            await call


async def test_tools_of_inspect_work_inside(sandbox_env: Any) -> None:
    # As in an evaluation, where Inspect records what its tools do.
    result = await SandboxEnvironmentProxy(sandbox_env).exec_remote(["sh", "-c", "echo out; exit 3"], stream=False)
    assert (result.returncode, result.stdout) == (3, "out\n")


def test_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = blocks_of_guide("python-inspect-ai")
    assert blocks
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
