"""The interface for asyncio."""

from __future__ import annotations

import asyncio

import pytest

import sandcell
from sandcell import AsyncSandbox

WAITS = "import time\nprint('started', flush=True)\ntime.sleep(600)"


def test_the_same_methods_can_be_awaited() -> None:
    async def main() -> None:
        async with AsyncSandbox(env={"A": "b"}) as sandbox:
            assert (await sandbox.run("import os; print(1); os.environ['A']")).result == "'b'"
            await sandbox.files.write("x", "é")
            assert await sandbox.files.read("x") == "é".encode()
            assert await sandbox.files.read_text("x") == "é"
            assert await sandbox.files.exists("x")
            assert [entry.name for entry in await sandbox.files.list()] == ["x"]
            await sandbox.files.remove("x")
            assert (await sandbox.history(1))[0].language == "command"
            assert (await sandbox.status())["sandbox_id"] == sandbox.id
            await sandbox.reset()
            with pytest.raises(sandcell.CodeFailedError):
                (await sandbox.run("1/0")).check()
        assert sandbox.closed
        with pytest.raises(sandcell.ExpiredError):
            await sandbox.run("1")
        assert (await sandcell.run_async("print(2)")).stdout == "2\n"

    asyncio.run(main())


def test_callbacks_may_be_coroutine_functions() -> None:
    async def main() -> None:
        heard: list[str] = []

        async def on_stdout(text: str) -> None:
            await asyncio.sleep(0)
            heard.append(text)

        async with AsyncSandbox() as sandbox:
            await sandbox.run("print('a', flush=True)\nprint('b')", on_stdout=on_stdout, on_stderr=heard.append)
        assert "".join(heard) == "a\nb\n"

    asyncio.run(main())


def test_sixty_four_tasks_have_sixty_four_sandboxes_at_once() -> None:
    async def task(number: int, all_made: asyncio.Event, made: list[str]) -> str | None:
        async with AsyncSandbox() as sandbox:
            assert sandbox.id
            made.append(sandbox.id)
            if len(made) == 64:
                all_made.set()
            await asyncio.wait_for(all_made.wait(), 120)
            return (await sandbox.run(f"{number} + 1")).result

    async def main() -> None:
        made: list[str] = []
        all_made = asyncio.Event()
        results = await asyncio.gather(*(task(number, all_made, made) for number in range(64)))
        assert results == [str(number + 1) for number in range(64)]
        assert len(set(made)) == 64

    asyncio.run(main())


@pytest.mark.parametrize("follows", [False, True])
def test_cancelling_a_task_ends_the_code_inside(follows: bool) -> None:
    async def main() -> None:
        async with AsyncSandbox() as sandbox:
            started = asyncio.Event()
            await sandbox.run("x = 5")
            run = sandbox.run(WAITS + "\nx = 6", timeout=700, on_stdout=(lambda text: started.set()) if follows else None)
            task = asyncio.ensure_future(run)
            if follows:
                await asyncio.wait_for(started.wait(), 30)
            else:
                while not any(session["busy"] for session in (await sandbox.status())["sessions"]):
                    await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            # The session is one: this run would wait for 600 s if the code still ran.
            assert (await asyncio.wait_for(sandbox.run("x"), 60)).result == "5"
            statuses = {record.code_preview: record.status for record in await sandbox.history()}
            assert statuses[(WAITS + "\nx = 6")[:100]] == "cancelled"

    asyncio.run(main())


def test_a_timeout_of_asyncio_ends_the_code_inside() -> None:
    async def main() -> None:
        async with AsyncSandbox() as sandbox:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(sandbox.run("import time; time.sleep(600)", timeout=700), 0.5)
            assert (await asyncio.wait_for(sandbox.run("1"), 60)).ok

    asyncio.run(main())


def test_tasks_that_share_a_sandbox_make_one() -> None:
    async def main() -> None:
        sandbox = AsyncSandbox()
        runs = await asyncio.gather(*(sandbox.run(f"{number}") for number in range(8)))
        assert [run.result for run in runs] == [str(number) for number in range(8)]
        assert len({run.sandbox_id for run in runs}) == 1
        await sandbox.close()

    asyncio.run(main())


def test_one_event_loop_after_the_other_uses_the_same_server() -> None:
    async def main() -> str:
        return (await sandcell.run_async("print(3)")).stdout

    assert [asyncio.run(main()) for _ in range(3)] == ["3\n"] * 3


def test_a_task_that_gives_up_does_not_take_the_sandbox_from_another() -> None:
    async def main() -> None:
        sandbox = AsyncSandbox()
        tasks = [asyncio.ensure_future(sandbox.run("1")) for _ in range(2)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        assert (await asyncio.wait_for(tasks[1], 60)).result == "1"
        await sandbox.close()

    asyncio.run(main())
