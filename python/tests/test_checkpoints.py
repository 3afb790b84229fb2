"""Checkpoints: kept states of a sandbox that can be brought back."""

from __future__ import annotations

import asyncio
import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
from conftest import until

import sandcell
from sandcell import AsyncSandbox, Checkpoint, Sandbox

STARTS_A_THREAD = (
    "import threading\nend = threading.Event()\nthread = threading.Thread(target=end.wait)\nthread.start()\nx = 1"
)

#: Seconds between two looks for an automatic checkpoint.
AUTOMATIC_POLL_S = 0.01


def is_of(checkpoint: Checkpoint, executions: int) -> bool:
    return checkpoint.automatic and checkpoint.executions == executions


def await_automatic(sandbox: Sandbox, executions: int) -> None:
    """Waits for the automatic checkpoint after this many executions."""
    until(lambda: any(is_of(checkpoint, executions) for checkpoint in sandbox.checkpoints()), pause=AUTOMATIC_POLL_S)


def names(sandbox: Sandbox) -> list[str]:
    """Returns the names of the checkpoints that were made by request."""
    return [checkpoint.name for checkpoint in sandbox.checkpoints() if not checkpoint.automatic]


def test_variables_and_files_come_back_any_number_of_times(sandbox: Sandbox) -> None:
    sandbox.run("rows = [1, 2]\nn = open('kept.txt', 'w').write('old')").check()
    sandbox.files.write("folder/removed.txt", "here")
    kept = sandbox.checkpoint("loaded")
    for _ in range(3):
        sandbox.run("rows.append(3)\ndel n\nn = open('kept.txt', 'w').write('newer')").check()
        sandbox.command("rm -r folder && echo x > added.txt").check()
        assert sandbox.run("rows").result == "[1, 2, 3]"
        back = sandbox.rewind(kept)
        assert (back.checkpoint.name, back.undone, back.ended) == ("loaded", 3, ())
        assert back.files_changed >= 3
        assert sandbox.run("rows, n").result == "([1, 2], 3)"
        assert sandbox.files.read_text("kept.txt") == "old"
        assert sandbox.files.read_text("folder/removed.txt") == "here"
        assert not sandbox.files.exists("added.txt")
        assert sandbox.rewind("loaded").undone == 1


def test_a_checkpoint_describes_its_state(sandbox: Sandbox) -> None:
    empty = sandbox.checkpoint()
    assert (empty.executions, empty.execution_id, empty.sessions, empty.files) == (0, None, (), 0)
    sandbox.files.write("data", b"x" * 1000)
    run = sandbox.run("x = 1")
    kept = sandbox.checkpoint("full")
    assert (kept.name, kept.automatic, kept.executions, kept.execution_id) == ("full", False, 1, run.execution_id)
    assert (kept.sessions, kept.files, kept.file_bytes) == (("python",), 1, 1000)
    assert kept.created.endswith("Z")
    assert names(sandbox) == [empty.name, "full"]
    assert empty.name


def test_a_session_that_a_checkpoint_does_not_have_ends(sandbox: Sandbox) -> None:
    empty = sandbox.checkpoint("empty")
    sandbox.run("x = 1").check()
    assert sandbox.rewind(empty).ended == ("python",)
    run = sandbox.run("x")
    assert run.error is not None
    assert run.error.name == "NameError"


def test_the_last_execution_can_be_undone(sandbox: Sandbox) -> None:
    assert sandbox.checkpoints() == []
    sandbox.run("x = 1").check()
    await_automatic(sandbox, 1)
    sandbox.run("x = 2").check()
    assert sandbox.rewind().undone == 1
    for to in (1, -1):
        assert sandbox.run("x").result == "1"
        back = sandbox.rewind(to)
        assert (back.undone, back.checkpoint.automatic, back.checkpoint.executions) == (1, True, 1)


@pytest.mark.parametrize("count", [2, -2])
def test_two_executions_are_undone_at_once(sandbox: Sandbox, count: int) -> None:
    sandbox.run("x = 1").check()
    sandbox.checkpoint()
    sandbox.run("x = 2").check()
    sandbox.run("x = 3").check()
    assert sandbox.rewind(count).undone == 2
    assert sandbox.run("x").result == "1"


def test_a_state_without_a_checkpoint_cannot_be_brought_back(sandbox: Sandbox) -> None:
    sandbox.run("x = 1").check()
    with pytest.raises(sandcell.NotFoundError) as caught:
        sandbox.rewind(50)
    assert caught.value.remedy
    assert sandbox.run("x").result == "1"


def test_a_run_keeps_the_state_before_its_code(sandbox: Sandbox) -> None:
    sandbox.run("x = 1").check()
    heard: list[str] = []
    sandbox.run("print(x); x = 2", checkpoint="before", on_stdout=heard.append).check()
    assert heard == ["1\n"]
    run = sandbox.run("1 / 0", checkpoint="failing")
    assert run.status == "error"
    assert names(sandbox) == ["before", "failing"]
    back = sandbox.rewind("before")
    assert (back.undone, back.kept) == (2, True)
    assert sandbox.run("x").result == "1"
    sandbox.rewind("failing")
    assert sandbox.run("x").result == "2"


def test_a_session_with_threads_is_refused_and_loses_nothing(sandbox: Sandbox) -> None:
    sandbox.run("x = 0").check()
    sandbox.checkpoint("before")
    sandbox.run(STARTS_A_THREAD).check()
    with pytest.raises(sandcell.CheckpointUnavailableError, match="thread") as caught:
        sandbox.checkpoint("refused")
    assert caught.value.code == "checkpoint_unavailable"
    assert "threads" in caught.value.remedy
    with pytest.raises(sandcell.CheckpointUnavailableError):
        sandbox.run("x = 2", checkpoint="refused")
    assert names(sandbox) == ["before"]
    assert sandbox.run("x, thread.is_alive()").result == "(1, True)"
    sandbox.run("end.set(); thread.join()").check()
    sandbox.checkpoint("ended")
    sandbox.run(STARTS_A_THREAD).check()
    sandbox.rewind("ended")
    assert sandbox.run("x, thread.is_alive()").result == "(1, False)"


def test_a_session_with_threads_can_return_to_a_checkpoint(sandbox: Sandbox) -> None:
    sandbox.run("x = 0").check()
    sandbox.checkpoint("before")
    sandbox.run(STARTS_A_THREAD).check()
    assert sandbox.rewind("before").undone == 1
    assert sandbox.run("x, 'thread' in dir()").result == "(0, False)"


def test_a_session_of_another_language_is_refused_and_loses_nothing(sandbox: Sandbox) -> None:
    sandbox.run("x = 1").check()
    sandbox.run("y=2", language="bash").check()
    with pytest.raises(sandcell.CheckpointUnavailableError, match="bash"):
        sandbox.checkpoint()
    assert sandbox.run("x").result == "1"
    assert sandbox.run("echo $y", language="bash").stdout == "2\n"
    sandbox.reset("bash")
    assert sandbox.checkpoint().sessions == ("python",)


@pytest.mark.parametrize("end", ["reset", "crash"])
def test_a_checkpoint_outlives_its_session(sandbox: Sandbox, end: str) -> None:
    sandbox.run("x = 1").check()
    kept = sandbox.checkpoint()
    if end == "reset":
        sandbox.reset()
    else:
        assert sandbox.run("import os; os._exit(3)").exit_code == 3
    sandbox.rewind(kept)
    run = sandbox.run("x")
    assert (run.result, run.state_lost) == ("1", False)


def test_a_checkpoint_of_the_same_name_is_replaced(sandbox: Sandbox) -> None:
    sandbox.run("x = 1").check()
    old = sandbox.checkpoint("a")
    sandbox.run("x = 2").check()
    sandbox.checkpoint("a")
    assert names(sandbox) == ["a"]
    sandbox.run("x = 3").check()
    sandbox.rewind(old)
    assert sandbox.run("x").result == "2"


def test_the_oldest_is_dropped_for_a_ninth(sandbox: Sandbox) -> None:
    sandbox.run("x = 1").check()
    for number in range(9):
        sandbox.checkpoint(f"n{number}")
    assert names(sandbox) == [f"n{number}" for number in range(1, 9)]
    with pytest.raises(sandcell.NotFoundError):
        sandbox.rewind("n0")


def test_a_dropped_checkpoint_is_gone(sandbox: Sandbox) -> None:
    sandbox.run("x = 1").check()
    first, second = sandbox.checkpoint("first"), sandbox.checkpoint("second")
    sandbox.drop_checkpoint(first)
    sandbox.drop_checkpoint("second")
    assert names(sandbox) == []
    for gone in (first, second, "first", "never"):
        with pytest.raises(sandcell.NotFoundError):
            sandbox.rewind(gone)
        with pytest.raises(sandcell.NotFoundError):
            sandbox.drop_checkpoint(gone)
    assert sandbox.run("x").result == "1"


def test_an_unknown_name_is_refused_with_those_that_exist(sandbox: Sandbox) -> None:
    sandbox.checkpoint("loaded")
    with pytest.raises(sandcell.NotFoundError, match="laoded") as caught:
        sandbox.rewind("laoded")
    assert "loaded" in caught.value.remedy


@pytest.mark.parametrize("name", [5, b"a", True, "", "-1", "a b", "é", "../a", "a" * 65, "\ud800"], ids=ascii)
def test_bad_names_are_refused(sandbox: Sandbox, name: Any) -> None:
    for use in (lambda: sandbox.checkpoint(name), lambda: sandbox.run("x = 1", checkpoint=name)):
        with pytest.raises(sandcell.InvalidArgumentError) as caught:
            use()
        assert caught.value.remedy
    assert sandbox.run("'x' in dir()").result == "False"


@pytest.mark.parametrize("to", [0, True, False, 1.5, None, b"a", ["a"], "", "-1", 1 << 53], ids=ascii)
def test_bad_targets_are_refused_and_nothing_is_reset(sandbox: Sandbox, to: Any) -> None:
    sandbox.run("x = 1").check()
    with pytest.raises(sandcell.InvalidArgumentError) as caught:
        sandbox.rewind(to)
    assert caught.value.remedy
    with pytest.raises(sandcell.InvalidArgumentError):
        sandbox.drop_checkpoint(to)
    assert sandbox.run("x").result == "1"


def test_running_code_is_not_disturbed(sandbox: Sandbox) -> None:
    sandbox.run("x = 1").check()
    kept = sandbox.checkpoint("before")
    started = Event()
    code = "import os, time\nprint('started', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\nx = 2"
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(sandbox.run, code, on_stdout=lambda _: started.set())
        assert started.wait(30)
        for use in (sandbox.checkpoint, lambda: sandbox.rewind(kept), lambda: sandbox.drop_checkpoint(kept)):
            with pytest.raises(sandcell.BusyError):
                use()
        sandbox.files.write("go", "")
        assert running.result().ok
    assert sandbox.run("x").result == "2"
    assert names(sandbox) == ["before"]


def test_files_that_are_too_large_are_refused() -> None:
    with Sandbox(memory_mb=64) as sandbox:
        sandbox.files.write("large", bytes(20 << 20))
        with pytest.raises(sandcell.LimitReachedError) as caught:
            sandbox.checkpoint()
        assert caught.value.remedy
        assert names(sandbox) == []


def test_checkpoints_are_plain_data_that_cannot_be_changed(sandbox: Sandbox) -> None:
    kept = sandbox.checkpoint("a")
    back = sandbox.rewind(kept)
    for record in (kept, back, back.checkpoint):
        assert record == pickle.loads(pickle.dumps(record)) == copy.deepcopy(record)
        for name in ("name", "undone", "new"):
            with pytest.raises(AttributeError):
                setattr(record, name, 5)
            with pytest.raises(AttributeError):
                delattr(record, name)
    assert kept.name == "a"
    assert repr(kept).startswith("Checkpoint(automatic=False, created='2")
    assert repr(back).startswith("Rewind(checkpoint=Checkpoint(")


def test_a_closed_sandbox_has_no_checkpoints() -> None:
    sandbox = Sandbox()
    kept = sandbox.checkpoint()
    sandbox.close()
    uses = (sandbox.checkpoint, sandbox.checkpoints, sandbox.rewind, lambda: sandbox.drop_checkpoint(kept))
    for use in uses:
        with pytest.raises(sandcell.ExpiredError):
            use()


def test_the_same_methods_can_be_awaited() -> None:
    async def main() -> None:
        async with AsyncSandbox() as sandbox:
            await sandbox.run("x = 1")
            kept = await sandbox.checkpoint("first")
            await sandbox.files.write("added", "")
            await sandbox.run("x = 2", checkpoint="second")
            assert [one.name for one in await sandbox.checkpoints() if not one.automatic] == ["first", "second"]
            assert (await sandbox.rewind(kept)).files_changed >= 1
            assert not await sandbox.files.exists("added")
            assert (await sandbox.run("x")).result == "1"
            await sandbox.rewind("second")
            assert await sandbox.files.exists("added")
            await sandbox.run("x = 3")
            while not any(is_of(one, 2) for one in await sandbox.checkpoints()):
                await asyncio.sleep(AUTOMATIC_POLL_S)
            await sandbox.run("x = 4")
            assert (await sandbox.rewind()).undone == 1
            assert (await sandbox.run("x")).result == "3"
            await sandbox.drop_checkpoint("second")
            with pytest.raises(sandcell.NotFoundError):
                await sandbox.rewind("second")
            with pytest.raises(sandcell.InvalidArgumentError):
                await sandbox.rewind(0)
            await sandbox.run(STARTS_A_THREAD)
            with pytest.raises(sandcell.CheckpointUnavailableError):
                await sandbox.checkpoint()

    asyncio.run(asyncio.wait_for(main(), 120))


def test_branches_go_on_independently(sandbox: Sandbox) -> None:
    sandbox.run("rows = [1]\nn = open('kept.txt', 'w').write('old')").check()
    kept = sandbox.checkpoint("one")
    sandbox.run("rows.append(2)").check()
    branches = sandbox.branch(2)
    try:
        for number, branch in enumerate(branches):
            branch.run(f"rows.append({number + 10})\nn = open('kept.txt', 'w').write('{number}')").check()
        assert sandbox.run("rows, open('kept.txt').read()").result == "([1, 2], 'old')"
        assert [branch.run("rows, open('kept.txt').read()").result for branch in branches] == [
            "([1, 2, 10], '0')",
            "([1, 2, 11], '1')",
        ]
        assert branches[0].files.read_text("kept.txt") == "0"
        with sandbox.branch(checkpoint=kept)[0] as earlier:
            assert earlier.run("rows").result == "[1]"
        assert earlier.closed
        assert len({sandbox.id, *(branch.id for branch in branches)}) == 3
    finally:
        for branch in branches:
            branch.close()
    assert sandbox.run("rows").result == "[1, 2]"


def test_what_cannot_be_branched_is_refused(sandbox: Sandbox) -> None:
    sandbox.run(STARTS_A_THREAD).check()
    with pytest.raises(sandcell.CheckpointUnavailableError, match="threads"):
        sandbox.branch()
    with pytest.raises(sandcell.NotFoundError):
        sandbox.branch(checkpoint="absent")
    assert sandbox.run("end.set(); thread.join(); x").result == "1"


def test_branches_of_an_async_sandbox() -> None:
    async def work() -> None:
        async with AsyncSandbox() as sandbox:
            await sandbox.run("x = 1")
            first, second = await sandbox.branch(2)
            runs = await asyncio.gather(first.run("x += 1\nx"), second.run("x += 2\nx"), sandbox.run("x"))
            assert [run.result for run in runs] == ["2", "3", "1"]
            await first.close()
            await second.close()

    asyncio.run(work())
