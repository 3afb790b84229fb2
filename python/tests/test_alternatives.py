"""Alternatives: pieces of code that run side by side, each in a branch, and the one that is kept."""

from __future__ import annotations

import asyncio
import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import program, until
from test_checkpoints import STARTS_A_THREAD

import sandcell
from sandcell import AsyncSandbox, FileChange, Sandbox
from sandcell._operations import call_tool, structured
from sandcell._sync import drive


def statuses(sandbox: Sandbox) -> list[dict[str, Any]]:
    """Returns the server's objects of all its sandboxes."""
    answer = drive(call_tool(sandbox._core.channel, "get_sandbox_status", {}, 30))
    found: list[dict[str, Any]] = structured(answer)["sandboxes"]
    return found


def sandboxes(sandbox: Sandbox) -> int:
    """Returns the number of sandboxes that the server has."""
    return len(statuses(sandbox))


def test_each_runs_from_the_same_state_and_one_is_kept(sandbox: Sandbox) -> None:
    sandbox.run("rows = [3, 1, 2]\nn = open('kept.txt', 'w').write('old\\n')").check()
    source = sandbox.id
    codes = [
        "rows.sort(); x = rows[0]; n = open('kept.txt', 'w').write('new\\n'); print(x)",
        "del n; y = sum(rows); open('added.bin', 'wb').write(bytes(300)); y",
        "1 / 0",
    ]
    found = sandbox.try_many(codes)
    first, second, third = found
    assert [one.run.status for one in found] == ["ok", "ok", "error"]
    assert (first.run.stdout, second.run.result) == ("1\n", "6")
    assert third.run.error is not None
    assert third.run.error.name == "ZeroDivisionError"
    changed = {change.name: (change.change, change.type) for change in first.variables}
    assert changed == {"rows": ("modified", "list"), "x": ("created", "int")}
    assert {change.name: change.change for change in second.variables} == {"n": "removed", "y": "created"}
    assert third.variables == ()
    assert [(one.path, one.change, one.size, one.size_before) for one in first.files] == [
        ("/home/user/kept.txt", "modified", 4, 4)
    ]
    assert first.files[0].diff is not None
    assert "-old\n+new\n" in first.files[0].diff
    assert [(one.path, one.change, one.size, one.diff) for one in second.files] == [
        ("/home/user/added.bin", "created", 300, None)
    ]
    assert (third.files, third.files.more) == ([], 0)
    # The sandbox has not changed, and the branches are sandboxes.
    assert sandbox.run("rows, 'y' in dir()").result == "([3, 1, 2], False)"
    assert second.sandbox.run("y").result == "6"
    found.keep(second)
    assert sandbox.run("rows, y, 'n' in dir()").result == "([3, 1, 2], 6, False)"
    assert sandbox.files.exists("added.bin")
    assert sandbox.id not in (None, source)
    for one in found:
        assert one.sandbox.closed
    assert sandbox.rewind("before-alternative").files_changed >= 1
    assert sandbox.run("'y' in dir()").result == "False"
    with pytest.raises(sandcell.ExpiredError):
        found.keep(first)
    assert sandboxes(sandbox) == 1


def test_they_run_at_the_same_time(sandbox: Sandbox) -> None:
    sandbox.run("x = 1").check()
    code = "import os, time\nprint(1)\nwhile not os.path.exists('go'): time.sleep(0.01)"

    def running() -> list[str]:
        return [one["sandbox_id"] for one in statuses(sandbox) if any(session["busy"] for session in one["sessions"])]

    with ThreadPoolExecutor(1) as threads:
        tried = threads.submit(sandbox.try_many, [code] * 3)
        until(lambda: tried.done() or len(running()) == 3)
        for branch in running():
            drive(sandbox._core.sibling(branch).write("go", "", False))
        with tried.result() as found:
            assert [one.run.stdout for one in found] == ["1\n"] * 3


def test_without_a_kept_one_nothing_is_left(sandbox: Sandbox) -> None:
    sandbox.run("x = 1").check()
    before = sandboxes(sandbox)
    with sandbox.try_many(["x = 2", "x = 3"]) as found:
        assert sandboxes(sandbox) == before + 2
    assert all(one.sandbox.closed for one in found)
    assert sandboxes(sandbox) == before
    found = sandbox.try_many(["x = 2"])
    del found
    gc.collect()
    until(lambda: sandboxes(sandbox) == before)
    assert sandbox.run("x").result == "1"


def test_an_alternative_can_end_in_any_way(sandbox: Sandbox) -> None:
    sandbox.run("x = 1").check()
    codes = ["import os; os._exit(3)", "while True: pass", "open('kept', 'w').write('a'); x = 2", "a = bytearray(1 << 32)"]
    with sandbox.try_many(codes, timeout=1.5) as found:
        assert [one.run.ok for one in found] == [False, False, True, False]
        assert (found[0].run.exit_code, found[1].run.status) == (3, "timeout")
        assert [change.name for change in found[2].variables] == ["x"]
        assert found[3].run.cause is not None
        found.keep(found[2])
    assert sandbox.run("x").result == "2"


def test_what_cannot_be_tried_is_refused_and_leaves_nothing(sandbox: Sandbox) -> None:
    sandbox.run("x = 0").check()
    before = sandboxes(sandbox)
    for codes in ("x = 1", [], [5], None, 5, ["a", None]):
        wrong: Any = codes
        with pytest.raises(sandcell.InvalidArgumentError) as caught:
            sandbox.try_many(wrong)
        assert caught.value.remedy
    for bad in ({"timeout": 0}, {"language": 5}, {"max_output": -1}):
        wrong = bad
        with pytest.raises(sandcell.InvalidArgumentError):
            sandbox.try_many(["x = 1", "x = 2"], **wrong)
    with pytest.raises(sandcell.LanguageUnavailableError):
        sandbox.try_many(["x = 1", "x = 2"], language="klingon")
    sandbox.run(STARTS_A_THREAD).check()
    with pytest.raises(sandcell.CheckpointUnavailableError, match="threads"):
        sandbox.try_many(["x = 1"])
    assert sandbox.run("end.set(); x").result == "1"
    until(lambda: sandboxes(sandbox) == before)


def test_many_calls_at_once_share_nothing(sandbox: Sandbox) -> None:
    sandbox.run("x = [1]").check()

    def results(number: int) -> list[str | None]:
        with sandbox.try_many([f"x.append({number}); x", f"x.append(-{number}); x"]) as found:
            return [one.run.result for one in found]

    with ThreadPoolExecutor(20) as threads:
        for number, found in enumerate(threads.map(results, range(1, 21)), 1):
            assert found == [f"[1, {number}]", f"[1, -{number}]"]
    assert sandbox.run("x").result == "[1]"
    assert sandboxes(sandbox) == 1


def test_an_interrupted_or_killed_call_leaves_nothing() -> None:
    code = """
import os, signal, sys, threading, sandcell
from test_alternatives import sandboxes, statuses
from conftest import program, until

def busy():
    return sum(session["busy"] for one in statuses(sandbox) for session in one["sessions"]) == 2

def meanwhile(what):
    threading.Thread(target=lambda: (until(busy), what())).start()

# A shell that starts something in the background ignores the signal for it.
signal.signal(signal.SIGINT, signal.default_int_handler)
with sandcell.Sandbox() as sandbox:
    sandbox.run("x = 1").check()
    meanwhile(lambda: os.kill(os.getpid(), signal.SIGINT))
    try:
        sandbox.try_many(["import time; time.sleep(60)"] * 2, timeout=100)
    except KeyboardInterrupt:
        until(lambda: sandboxes(sandbox) == 1)
        print("interrupted", sandbox.run("x").result, flush=True)
    meanwhile(lambda: os.kill(sandcell._stdio.local_server()._process.pid, signal.SIGKILL))
    try:
        sandbox.try_many(["import time; time.sleep(60)"] * 2, timeout=100)
    except sandcell.SessionLostError as error:
        print("killed", bool(error.remedy), flush=True)
with sandcell.Sandbox() as again:
    print(again.try_many(["1"])[0].run.result, sandboxes(again))
"""
    with program(f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n{code}") as child:
        out, errors = child.communicate(timeout=120)
    assert out.split("\n")[:2] == ["interrupted 1", "killed True"], errors
    assert out.split("\n")[2].startswith("1 "), errors


def test_only_one_of_the_list_can_be_kept(sandbox: Sandbox) -> None:
    with sandbox.try_many(["x = 1"]) as others, sandbox.try_many(["x = 2"]) as found:
        for wrong in (others[0], 0, None, "x"):
            one: Any = wrong
            with pytest.raises(sandcell.InvalidArgumentError) as caught:
                found.keep(one)
            assert caught.value.remedy
        found[0].sandbox.close()
        with pytest.raises(sandcell.ExpiredError):
            found.keep(found[0])
    assert sandbox.run("'x' in dir()").result == "False"


def test_a_sandbox_with_functions_tries_nothing() -> None:
    def add(a: int, b: int) -> int:
        return a + b

    with Sandbox(tools=[add]) as sandbox, pytest.raises(sandcell.InvalidArgumentError, match="tools"):
        sandbox.try_many(["x = 1"])


def test_files_are_compared_with_a_state(sandbox: Sandbox) -> None:
    sandbox.files.write("a.txt", "one\ntwo\n")
    sandbox.files.write("gone.txt", "x" * 10)
    kept = sandbox.checkpoint("first")
    assert sandbox.changes(kept) == []
    sandbox.command("printf 'one\\n2\\n' > a.txt; rm gone.txt; mkdir folder").check()
    found = sandbox.changes("first")
    assert [(one.path, one.change, one.size, one.size_before) for one in found] == [
        ("/home/user/a.txt", "modified", 6, 8),
        ("/home/user/folder", "created", 0, 0),
        ("/home/user/gone.txt", "removed", 0, 10),
    ]
    assert isinstance(found[0], FileChange)
    assert found[0].diff is not None
    assert " one\n-two\n+2\n" in found[0].diff
    assert sandbox.changes() == found
    with pytest.raises(sandcell.NotFoundError):
        sandbox.changes("absent")
    with pytest.raises(AttributeError):
        found[0].path = "other"


def test_files_of_a_mount_are_compared_with_the_hosts(sandbox: Sandbox, tmp_path: Path) -> None:
    with pytest.raises(sandcell.NotFoundError, match="copy-on-write"):
        sandbox.mount_changes()
    tmp_path.chmod(0o755)
    (tmp_path / "a.txt").write_text("one\n")
    code = f"""
import asyncio
import sandcell
sandcell.configure("--mount", {f"{tmp_path}:/mnt/p:cow"!r})
with sandcell.Sandbox() as sandbox:
    assert sandbox.mount_changes() == []
    sandbox.run("open('/mnt/p/a.txt', 'a').write('two\\\\n')").check()
    found = sandbox.mount_changes()
    print([(one.path, one.change, one.size, one.size_before) for one in found], found.more)
    print(found[0].diff)

async def work():
    async with sandcell.AsyncSandbox() as sandbox:
        print(await sandbox.mount_changes())

asyncio.run(work())
"""
    with program(code) as child:
        output, errors = child.communicate(timeout=60)
    assert output.startswith("[('/mnt/p/a.txt', 'modified', 8, 4)] 0\n"), errors
    assert "@@ -1 +1,2 @@\n one\n+two\n" in output, output
    assert output.endswith("[]\n"), errors
    assert (tmp_path / "a.txt").read_text() == "one\n"


def test_the_same_can_be_awaited() -> None:
    async def work() -> None:
        async with AsyncSandbox() as sandbox:
            await sandbox.run("x = 1")
            async with await sandbox.try_many(["x += 1", "x += 2; n = open('a', 'w').write('b')"]) as found:
                assert [one.run.status for one in found] == ["ok", "ok"]
                assert [change.path for change in found[1].files] == ["/home/user/a"]
                await found.keep(found[1])
            assert (await sandbox.run("x")).result == "3"
            assert [change.path for change in await sandbox.changes("before-alternative")] == ["/home/user/a"]
            task = asyncio.create_task(sandbox.try_many(["import time; time.sleep(60)"] * 2, timeout=100))
            await asyncio.sleep(1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await sandbox.run("x")).result == "3"

    asyncio.run(asyncio.wait_for(work(), 120))
