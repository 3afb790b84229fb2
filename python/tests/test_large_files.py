"""Files that move as raw bytes: through the server of this process, through a service, and where that is not possible."""

from __future__ import annotations

import asyncio
import gc
import os
import tempfile
import threading
from pathlib import Path

import pytest
from conftest import program, until
from test_service import Service

import sandcell
from sandcell import AsyncSandbox, Sandbox, _pool, _stdio

LARGE = os.urandom(5 << 20) + b"the end"


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Records whether each transfer of raw bytes was possible."""
    record: list[bool] = []
    move = _pool.move

    def recording(*arguments: object) -> _pool.Outcome:
        outcome = move(*arguments)  # type: ignore[arg-type]
        record.append(outcome[0] is True)
        return outcome

    monkeypatch.setattr(_pool, "move", recording)
    return record


def attached(sandbox_id: str, **options: str) -> Sandbox:
    """Returns another view of a sandbox."""
    sandbox = Sandbox(**options)  # type: ignore[arg-type]
    sandbox._core.attach(sandbox_id)
    return sandbox


def there_and_back(sandbox: Sandbox, folder: Path) -> None:
    assert sandbox.files.write("é &?#.bin", LARGE) == len(LARGE)
    assert sandbox.files.read("é &?#.bin") == LARGE
    sandbox.files.write("é &?#.bin", LARGE, append=True)
    assert sandbox.files.download("é &?#.bin", folder / "twice") == 1
    assert (folder / "twice").read_bytes() == LARGE + LARGE
    sandbox.files.upload(folder / "twice", "/tmp/again")
    assert sandbox.run("open('/tmp/again', 'rb').read()[-7:]").result == "b'the end'"


def test_large_files_of_this_machine_move_as_raw_bytes(sandbox: Sandbox, moved: list[bool], tmp_path: Path) -> None:
    there_and_back(sandbox, tmp_path)
    assert moved == [True] * 5


def test_large_files_of_a_service_move_as_raw_bytes(moved: list[bool], tmp_path: Path) -> None:
    service = Service(tmp_path / "data")
    try:
        with Sandbox(url=service.url, token=service.token) as sandbox:
            there_and_back(sandbox, tmp_path)
            assert moved == [True] * 5
            unknown = attached("sbother", url=service.url, token=service.token)
            with pytest.raises(sandcell.NotFoundError) as caught:
                unknown.files.write("a", LARGE)
            assert caught.value.remedy
    finally:
        service.end()


def test_a_service_without_rest_takes_large_files_by_mcp(
    moved: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDCELL_HTTP__REST", "false")
    service = Service(tmp_path / "data")
    try:
        with Sandbox(url=service.url, token=service.token) as sandbox:
            there_and_back(sandbox, tmp_path)
            assert moved == [False], "it is asked once"
    finally:
        service.end()


def test_a_server_that_passes_calls_on_takes_large_files_by_mcp() -> None:
    # The path of a socket has 107 characters at most.
    with tempfile.TemporaryDirectory(dir="/tmp") as runtime:
        write_through_a_shared_server(runtime)


def write_through_a_shared_server(runtime: str) -> None:
    code = f"""
import sandcell
sandcell.configure("--shared", env={{"XDG_RUNTIME_DIR": {runtime!r}, "SANDCELL_SERVICE__IDLE_S": "1"}})
data = bytes(3 << 20) + b"end"
with sandcell.Sandbox() as sandbox:
    sandbox.files.write("a", data)
    print(sandbox.files.read("a") == data)
"""
    with program(code) as child:
        output, errors = child.communicate(timeout=60)
    assert output == "True\n", errors


def test_what_refuses_a_large_file_is_named(sandbox: Sandbox) -> None:
    sandbox.run("import os; os.mkdir('folder')").check()
    with pytest.raises(sandcell.InvalidArgumentError, match="is a folder"):
        sandbox.files.write("folder", LARGE)
    sandbox.files.write("a", LARGE)
    with pytest.raises(sandcell.OutputLimitError, match="more than"):
        sandbox.files.read("a", max_bytes=4 << 20)
    assert sandbox.files.read("a") == LARGE


def test_a_full_disk_ends_a_large_file() -> None:
    with Sandbox(disk_mb=16) as sandbox:
        with pytest.raises(sandcell.SandcellError) as caught:
            sandbox.files.write("a", bytes(40 << 20))
        assert caught.value.code == "disk_full"
        assert sandbox.run("1 + 1").result == "2"


def test_a_sandbox_that_is_closed_ends_its_transfers() -> None:
    with Sandbox(memory_mb=512, disk_mb=400) as sandbox:
        sandbox.run("import os; os.truncate(os.open('a', os.O_CREAT | os.O_RDWR), 300 << 20)").check()
        assert sandbox.id
        other = attached(sandbox.id)

        def read_until_closed() -> None:
            for _ in range(30):
                sandbox.files.read("a", max_bytes=1 << 30)

        closing = threading.Timer(0.05, other.close)
        closing.start()
        with pytest.raises(sandcell.SandcellError) as caught:
            read_until_closed()
        assert caught.value.code in ("expired", "not_found"), caught.value
        closing.join()


def test_a_transfer_can_be_cancelled(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncSandbox(memory_mb=512, disk_mb=400) as sandbox:
            await sandbox.run("import os; os.truncate(os.open('a', os.O_CREAT | os.O_RDWR), 300 << 20)")
            for started in (sandbox.files.download("a", tmp_path / "a"), sandbox.files.write("b", bytes(200 << 20))):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(started, 0.05)
            assert list(tmp_path.iterdir()) == []
            await sandbox.files.write("c", LARGE)
            assert await sandbox.files.read("c") == LARGE

    asyncio.run(main())


def test_the_death_of_the_server_ends_a_transfer() -> None:
    code = """
import os, signal, threading, sandcell
from sandcell import _stdio
sandbox = sandcell.Sandbox(memory_mb=512, disk_mb=400)
sandbox.run("import os; os.truncate(os.open('a', os.O_CREAT | os.O_RDWR), 300 << 20)").check()
threading.Timer(0.1, lambda: os.kill(_stdio._local.server._process.pid, signal.SIGKILL)).start()
try:
    for _ in range(30):
        sandbox.files.read("a", max_bytes=1 << 30)
except sandcell.SessionLostError as error:
    print(error.code, bool(error.remedy))
"""
    with program(code) as child:
        output, errors = child.communicate(timeout=60)
    assert output == "session_lost True\n", errors


def test_a_file_that_becomes_shorter_is_named(sandbox: Sandbox, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(LARGE)
    with path.open("rb") as file:
        file.seek(1)
        transfer = sandbox._core._move("a", body=file, length=len(LARGE))
        from sandcell._sync import drive

        with pytest.raises(sandcell.InvalidArgumentError, match="shorter"):
            drive(transfer)
    sandbox.files.write("a", LARGE)
    assert sandbox.files.read("a") == LARGE


def test_idle_connections_end(monkeypatch: pytest.MonkeyPatch) -> None:
    sandcell.shutdown()  # The threads of another test wait for longer.
    monkeypatch.setattr(_pool, "_IDLE_TIMEOUT", 0.05)
    with Sandbox() as sandbox:
        sandbox.files.write("a", LARGE)
        pool = _stdio.local_server()._pool
        assert pool is not None
        until(lambda: pool._threads == 0)
        sandbox.files.write("a", LARGE)


def test_many_transfers_share_the_server() -> None:
    async def one(number: int) -> None:
        async with AsyncSandbox() as sandbox:
            data = bytes([number]) * (2 << 20)
            await sandbox.files.write("a", data)
            assert await sandbox.files.read("a") == data

    async def main() -> None:
        await asyncio.gather(*(one(number) for number in range(40)))

    asyncio.run(main())


def test_a_process_with_many_open_files_moves_large_files() -> None:
    code = """
import os, resource, sandcell
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
held = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
with sandcell.Sandbox() as sandbox:
    sandbox.files.write("a", bytes(3 << 20))
    sandbox.files.write("a", bytes(3 << 20))
    print(len(sandbox.files.read("a")))
"""
    with program(code) as child:
        output, errors = child.communicate(timeout=60)
    assert output == f"{3 << 20}\n", errors


def test_a_write_that_was_refused_is_not_done_later(monkeypatch: pytest.MonkeyPatch) -> None:
    sandcell.shutdown()
    with Sandbox() as sandbox:
        sandbox.files.write("victim", b"old")
        start = threading.Thread.start

        def refuse(thread: threading.Thread) -> None:
            if thread.name == "sandcell-http":
                raise RuntimeError("can't start new thread")
            start(thread)

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(sandcell.BackendUnavailableError, match="no thread"):
                sandbox.files.write("victim", LARGE)
        sandbox.files.write("other", LARGE)
        sandbox.files.write("third", LARGE)
        assert sandbox.files.read("victim") == b"old"


def test_a_local_disk_that_is_full_is_named(tmp_path: Path) -> None:
    code = f"""
import resource, signal, sandcell
with sandcell.Sandbox() as sandbox:
    sandbox.files.write("a", bytes(6 << 20))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, resource.RLIM_INFINITY))
    try:
        sandbox.files.download("a", {str(tmp_path / "a")!r})
    except sandcell.InvalidArgumentError as error:
        print("File too large" in error.message, error.remedy)
"""
    with program(code) as child:
        output, errors = child.communicate(timeout=60)
    assert output == "True check the path, its rights and the free space\n", errors


def test_more_large_files_than_a_sandbox_takes_at_once_wait() -> None:
    async def main() -> None:
        async with AsyncSandbox(disk_mb=400) as sandbox:
            data = bytes((1 << 20) + 1)
            await asyncio.gather(*(sandbox.files.write(f"s{number}", data) for number in range(100)))
            assert (await sandbox.run("import os; len(os.listdir())")).result == "100"

    asyncio.run(main())


def test_cancelled_transfers_leave_others_alone() -> None:
    async def main() -> None:
        async with AsyncSandbox() as sandbox:
            await sandbox.files.write("a", LARGE)

            async def cancel(number: int) -> None:
                for step in range(20):
                    try:
                        await asyncio.wait_for(sandbox.files.read("a"), (number * 20 + step) % 5 / 1000)
                    except asyncio.TimeoutError:
                        pass

            async def read() -> None:
                for _ in range(20):
                    assert await sandbox.files.read("a") == LARGE

            await asyncio.gather(*(cancel(number) for number in range(4)), *(read() for _ in range(3)))

    asyncio.run(main())


def test_the_data_of_a_transfer_is_not_kept(sandbox: Sandbox) -> None:
    # A bytearray that something still looks into cannot change its size.
    big = bytearray(LARGE)
    sandbox.files.write("a", big)  # type: ignore[arg-type]
    gc.collect()
    big.clear()
