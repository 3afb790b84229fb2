"""The adapter for the sandbox agents of the OpenAI Agents SDK, with the real package and its scripted model."""

from __future__ import annotations

import asyncio
import inspect
import io
import json
import re
import tarfile
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agents", reason="needs openai-agents")

from agents import RunConfig, Runner
from agents.sandbox import Manifest, SandboxAgent, SandboxPathGrant, SandboxRunConfig
from agents.sandbox.entries import Dir, File, LocalDir, S3Mount
from agents.sandbox.errors import (
    ConfigurationError,
    ExecNonZeroError,
    ExecTimeoutError,
    ExecTransportError,
    ExposedPortUnavailableError,
    InvalidManifestPathError,
    MountConfigError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceStartError,
    WorkspaceWriteTypeError,
)
from agents.sandbox.session import BaseSandboxClientOptions, SandboxSessionState
from agents.sandbox.snapshot import LocalSnapshotSpec
from agents.sandbox.types import User
from agents.testing import ScriptedModel, assistant_message, function_call
from agents.tracing import set_tracing_disabled
from conftest import blocks_of_guide, program
from openai.types.responses import ResponseCustomToolCall
from test_service import Service

from sandcell import ExpiredError, InvalidArgumentError, NotFoundError
from sandcell.openai_agents import (
    SandcellSandboxClient,
    SandcellSandboxClientOptions,
    SandcellSandboxSession,
    SandcellSandboxSessionState,
)

set_tracing_disabled(True)


def asynchronous(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a test in an event loop, with a bound."""

    def run(**fixtures: Any) -> None:
        asyncio.run(asyncio.wait_for(test(**fixtures), 120))

    run.__name__ = test.__name__
    run.__signature__ = inspect.signature(test)  # type: ignore[attr-defined]
    return run


@asynccontextmanager
async def new_session(**arguments: Any) -> AsyncIterator[Any]:
    client = SandcellSandboxClient()
    session = await client.create(**arguments)
    try:
        async with session:
            yield session
    finally:
        await client.delete(session)


async def content(session: Any, path: str) -> bytes:
    stream = await session.read(Path(path))
    data: bytes = stream.read()
    return data


@asynchronous
async def test_commands_run_in_the_workspace_with_exit_code_and_both_streams() -> None:
    async with new_session(manifest=Manifest(environment={"value": {"NAME": "value"}})) as session:
        result = await session.exec("pwd; echo $NAME; echo é >&2; exit 3")
        assert (result.stdout, result.stderr, result.exit_code) == (b"/home/user/workspace\nvalue\n", "é\n".encode(), 3)
        assert (await session.exec("printf", "%s|", "a b", "$NAME", shell=False)).stdout == b"a b|$NAME|"
        missing = await session.exec("nosuchprogram", shell=False)
        assert missing.exit_code == 127
        assert b"nosuchprogram" in missing.stderr
        both = await asyncio.gather(session.exec("echo 1"), session.exec("echo 2"))
        assert [result.stdout for result in both] == [b"1\n", b"2\n"]


@asynchronous
async def test_a_command_that_runs_too_long_is_a_typed_error() -> None:
    async with new_session() as session:
        with pytest.raises(ExecTimeoutError):
            await session.exec("touch started; sleep 100", timeout=1)
        assert await content(session, "started") == b""


@asynchronous
async def test_a_killed_command_and_cut_output_say_so_in_stderr() -> None:
    async with new_session() as session:
        killed = await session.exec("kill -9 $$")
        assert killed.exit_code == 137
        assert b"SIGKILL" in killed.stderr
        cut = await session.exec("head -c 1100000 /dev/zero | tr '\\0' x")
        assert len(cut.stdout) == 1 << 20
        assert b"left out" in cut.stderr


@asynchronous
async def test_a_cancelled_command_ends_inside() -> None:
    async with new_session() as session:
        task = asyncio.create_task(session.exec("echo $$ > pid; exec sleep 100", timeout=110))
        while not (await session.exec("cat pid")).stdout:
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while (await session.exec("kill -0 $(cat pid)")).ok():
            await asyncio.sleep(0.02)


@asynchronous
async def test_files_are_written_and_read_byte_for_byte() -> None:
    async with new_session() as session:
        data = bytes(range(256)) * 12_000
        await session.write(Path("deep/er/a.bin"), io.BytesIO(data))
        assert await content(session, "deep/er/a.bin") == data
        assert await content(session, "/home/user/workspace/deep/er/a.bin") == data
        await session.write(Path("a.txt"), io.StringIO("ü"))
        await session.write(Path("empty"), io.BytesIO())
        assert (await content(session, "a.txt"), await content(session, "empty")) == ("ü".encode(), b"")
        assert await session.read_bounded(Path("deep/er/a.bin"), max_bytes=3) == b"\0\1\2"
        assert sorted(Path(entry.path).name for entry in await session.ls(".")) == ["a.txt", "deep", "empty"]
        await session.mkdir("folder")
        await session.mv("a.txt", "folder/b.txt")
        await session.rm("deep", recursive=True)
        assert (await session.exec("find . -type f | sort")).stdout == b"./empty\n./folder/b.txt\n"


@asynchronous
async def test_failures_of_file_calls_are_typed() -> None:
    async with new_session() as session:
        with pytest.raises(WorkspaceReadNotFoundError) as missing:
            await session.read(Path("missing"))
        assert isinstance(missing.value.cause, NotFoundError)
        await session.exec("mkdir folder; ln -s /etc out; mkdir locked; chmod 500 locked")
        with pytest.raises(WorkspaceArchiveReadError):
            await session.read(Path("folder"))
        with pytest.raises(WorkspaceArchiveWriteError):
            await session.write(Path("locked/a"), io.BytesIO(b"a"))
        for outside in ("../a", "out/passwd", "/etc/passwd"):
            with pytest.raises(InvalidManifestPathError):
                await session.read(Path(outside))
        with pytest.raises(InvalidManifestPathError):
            await session.write(Path("out/a"), io.BytesIO(b"a"))
        with pytest.raises(WorkspaceWriteTypeError):
            await session.write(Path("a"), _Numbers())
        with pytest.raises(ExecNonZeroError):
            await session.rm("missing")


class _Numbers(io.IOBase):
    def read(self, size: int = -1) -> list[int]:
        return [size]


@asynchronous
async def test_a_manifest_is_laid_out(tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "x.py").write_text("print('local')")
    manifest = Manifest(
        entries={
            "notes": Dir(children={"a.txt": File(content=b"hello")}),
            "local": LocalDir(src=tmp_path / "local"),
        },
        extra_path_grants=(SandboxPathGrant(path=str(tmp_path)), SandboxPathGrant(path="/tmp/more")),
    )
    async with new_session(manifest=manifest) as session:
        assert (await session.exec("cat notes/a.txt; python3 local/x.py")).stdout == b"hellolocal\n"
        await session.write(Path("/tmp/more/a"), io.BytesIO(b"granted"))
        assert await content(session, "/tmp/more/a") == b"granted"


@asynchronous
async def test_a_workspace_moves_to_another_sandbox() -> None:
    async with new_session() as first:
        await first.exec("mkdir -p bin 'a b'; echo run > bin/x; chmod 755 bin/x; ln -s /usr/bin/env link; ln -s x bin/y")
        archive = await first.persist_workspace()
    with tarfile.open(fileobj=io.BytesIO(archive.getvalue())) as tar:
        assert sorted(tar.getnames()) == [".", "./a b", "./bin", "./bin/x", "./bin/y", "./link"]
    async with new_session() as second:
        await second.hydrate_workspace(archive)
        listed = (await second.exec("stat -c '%A %N' bin/x bin/y link; ls /tmp/*.tar")).stdout
        assert listed == b"-rwxr-xr-x 'bin/x'\nlrwxrwxrwx 'bin/y' -> 'x'\nlrwxrwxrwx 'link' -> '/usr/bin/env'\n"


@asynchronous
async def test_an_archive_that_leaves_the_workspace_is_refused() -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("../outside"))
    async with new_session() as session:
        with pytest.raises(WorkspaceArchiveWriteError):
            await session.hydrate_workspace(io.BytesIO(packed.getvalue()))
        with pytest.raises(WorkspaceArchiveWriteError):
            await session.hydrate_workspace(io.BytesIO(b"no archive"))
        with pytest.raises(WorkspaceWriteTypeError):
            await session.hydrate_workspace(io.StringIO("no bytes"))
        assert (await session.exec("ls -A . ..")).stdout == b".:\n\n..:\nworkspace\n"


@asynchronous
async def test_a_state_leads_to_the_same_sandbox_while_it_exists() -> None:
    client = SandcellSandboxClient()
    options = SandcellSandboxClientOptions(memory_mb=300, env={"A": "b"}, timeout=60)
    session = await client.create(options=options, manifest=Manifest(entries={"a": File(content=b"1")}))
    await session.start()
    await session.exec("echo 2 > a; sleep 300 & echo kept > /tmp/kept")
    stored = client.serialize_session_state(session.state)
    number = session.state.sandbox_id
    del session
    for other in (client, SandcellSandboxClient()):
        resumed = await other.resume(other.deserialize_session_state(dict(stored)))
        await resumed.start()
        assert resumed.state.sandbox_id == number
        assert (await resumed.exec("cat a /tmp/kept; echo $A")).stdout == b"2\nkept\nb\n"
    assert await resumed.running()
    await client.delete(resumed)
    assert not await resumed.running()
    with pytest.raises(ExecTransportError) as gone:
        await resumed.exec("true")
    assert isinstance(gone.value.cause, ExpiredError)


def test_a_sandbox_of_a_service_outlives_the_process_that_made_it(tmp_path: Path) -> None:
    service = Service(tmp_path)
    code = f"""
import asyncio, io, json, os, pathlib
from sandcell.openai_agents import SandcellSandboxClient

async def main():
    client = SandcellSandboxClient(url={service.url!r}, token={service.token!r})
    session = await client.create()
    await session.start()
    await session.write(pathlib.Path("a"), io.BytesIO(b"kept"))
    print(json.dumps(client.serialize_session_state(session.state)), flush=True)
    os._exit(0)

asyncio.run(main())
"""

    async def resume(stored: dict[str, object]) -> None:
        client = SandcellSandboxClient(url=service.url, token=service.token)
        session = await client.resume(client.deserialize_session_state(dict(stored)))
        async with session:
            assert session.state.sandbox_id == stored["sandbox_id"]
            assert await content(session, "a") == b"kept"
        await client.delete(session)

    try:
        with program(code) as process:
            output, errors = process.communicate(timeout=60)
        assert output, errors
        asyncio.run(resume(json.loads(output)))
    finally:
        service.end()


@asynchronous
async def test_a_snapshot_fills_a_new_sandbox(tmp_path: Path) -> None:
    client = SandcellSandboxClient()
    session = await client.create(snapshot=LocalSnapshotSpec(base_path=tmp_path), options=SandcellSandboxClientOptions())
    async with session:
        await session.write(Path("a"), io.BytesIO(b"kept"))
    stored = client.serialize_session_state(session.state)
    first = session.state.sandbox_id
    await client.delete(session)
    resumed = await client.resume(client.deserialize_session_state(stored))
    async with resumed:
        assert resumed.state.sandbox_id != first
        assert await content(resumed, "a") == b"kept"
    await client.delete(resumed)


@asynchronous
async def test_a_session_starts_again_after_its_end() -> None:
    client = SandcellSandboxClient()
    session = await client.create(manifest=Manifest(entries={"a": File(content=b"1")}))
    for _ in range(2):
        async with session:
            assert await content(session, "a") == b"1"
            await session.exec("echo 2 > a")
    await client.delete(session)


@asynchronous
async def test_what_is_not_supported_is_refused_with_a_typed_error() -> None:
    client = SandcellSandboxClient()
    for manifest in (
        Manifest(users=[User(name="alice")]),
        Manifest(extra_path_grants=(SandboxPathGrant(path="/data", host_path="/srv"),)),
    ):
        with pytest.raises(ConfigurationError, match="does not support"):
            await client.create(manifest=manifest)
    async with new_session() as session:
        assert not session.supports_pty()
        inner = session._inner
        refusals: list[Callable[[], Any]] = [
            lambda: inner.pty_exec_start("sh", tty=True),
            lambda: inner.pty_write_stdin(session_id=1, chars=""),
            lambda: session.exec("true", user="root"),
            lambda: session.read(Path("a"), user=User(name="root")),
            lambda: session.write(Path("a"), io.BytesIO(), user="root"),
            lambda: session.ls(".", user="root"),
        ]
        for refused in refusals:
            with pytest.raises(ConfigurationError, match="does not support"):
                await refused()
        with pytest.raises(ExposedPortUnavailableError):
            await session.resolve_exposed_port(8000)


@asynchronous
async def test_mounts_are_refused() -> None:
    from agents.sandbox.entries import InContainerMountStrategy, RcloneMountPattern

    bucket = S3Mount(bucket="bucket", mount_strategy=InContainerMountStrategy(pattern=RcloneMountPattern()))
    with pytest.raises(MountConfigError, match="does not support mounts"):
        await SandcellSandboxClient().create(manifest=Manifest(entries={"data": bucket}))


@asynchronous
async def test_a_root_that_cannot_be_made_is_named() -> None:
    client = SandcellSandboxClient()
    session = await client.create(manifest=Manifest(root="/opt/work"))
    with pytest.raises(WorkspaceStartError) as error:
        await session.start()
    assert "/home/user/workspace" in str(error.value.context)
    await client.delete(session)


@asynchronous
async def test_foreign_sessions_and_states_are_refused() -> None:
    class Foreign(SandboxSessionState):  # type: ignore[misc]
        pass

    client = SandcellSandboxClient()
    state = Foreign(type="foreign", snapshot={"type": "noop", "id": "1"}, manifest=Manifest())
    with pytest.raises(InvalidArgumentError):
        await client.resume(state)
    inner = SandcellSandboxSession(SandcellSandboxSessionState(snapshot={"type": "noop", "id": "1"}, manifest=Manifest()))
    with pytest.raises(ExpiredError):
        inner._open_sandbox()
    assert not await inner.running()


def test_options_and_states_survive_json_without_a_token() -> None:
    options = SandcellSandboxClientOptions(packages=("six",), network=("pypi.org",), memory_mb=256)
    assert BaseSandboxClientOptions.parse(options.model_dump(mode="json")) == options
    client = SandcellSandboxClient(url="http://localhost:1", token="secret-token")
    state = SandcellSandboxSessionState(snapshot={"type": "noop", "id": "1"}, manifest=Manifest(), options=options)
    stored = client.serialize_session_state(state)
    assert "secret-token" not in str(stored)
    assert client.deserialize_session_state(stored) == state


@asynchronous
async def test_an_agent_works_with_shell_and_patches() -> None:
    patch = "*** Begin Patch\n*** Update File: a.py\n@@\n-print(1)\n+print(2)\n*** End Patch\n"
    slow = {"cmd": "python3 a.py; sleep 100", "yield_time_ms": 1000}
    model = ScriptedModel(
        [
            [function_call("exec_command", {"cmd": "python3 a.py"}, call_id="1")],
            [ResponseCustomToolCall(type="custom_tool_call", name="apply_patch", input=patch, call_id="2")],
            [function_call("exec_command", {"cmd": "python3 a.py"}, call_id="3")],
            [function_call("exec_command", slow, call_id="4")],
            [assistant_message("done")],
        ]
    )
    manifest = Manifest(entries={"a.py": File(content=b"print(1)\n")})
    agent = SandboxAgent(name="coder", instructions="Change the program.", model=model, default_manifest=manifest)
    client = SandcellSandboxClient()
    result = await Runner.run(agent, "go", run_config=RunConfig(sandbox=SandboxRunConfig(client=client)))
    outputs = [str(item.output) for item in result.new_items if item.type == "tool_call_output_item"]
    assert result.final_output == "done"
    assert [line for output in outputs for line in output.splitlines() if line.isdigit()] == ["1", "2"]
    assert "timed out" in outputs[3]
    assert not client._sandboxes


@pytest.mark.parametrize("block", blocks_of_guide("python-openai-agents"), ids=lambda block: "block")
def test_the_guide_runs(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block, "python-openai-agents.md", "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert all(line in printed for line in re.findall(r"# prints (.*)", block))
