"""Saved states: variables and files that outlive the server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from test_checkpoints import STARTS_A_THREAD

import sandcell
from sandcell import AsyncSandbox, Sandbox


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    for one in sandcell.saved():
        sandcell.drop_saved(one)


def test_a_saved_state_outlives_its_server() -> None:
    with Sandbox(env={"MODE": "test"}, memory_mb=256) as sandbox:
        sandbox.run(
            "rows = [3, 1, 2]\ndef total(): return sum(rows)\nfile = open('kept.txt', 'w+')\nfile.write('old')"
        ).check()
        saved = sandbox.save("analysis")
        sandbox.run("rows.clear()").check()
    assert (saved.name, saved.sandbox_id, saved.executions, saved.sessions) == ("analysis", sandbox.id, 1, ("python",))
    assert saved.size > 0
    assert saved.created.endswith("Z")
    sandcell.shutdown()
    assert sandcell.saved() == [saved]
    with Sandbox(saved="analysis", env={"MORE": "1"}) as again, Sandbox(saved=saved) as other:
        code = "import os\nrows, total(), file.tell(), open('kept.txt').read(), os.environ['MODE']"
        assert again.run(code).result == "([3, 1, 2], 6, 3, 'old', 'test')"
        again.run("rows.append(4)").check()
        assert other.run("rows").result == "[3, 1, 2]"
        assert again.command("echo $MODE $MORE").stdout == "test 1\n"
        assert again.status()["limits"]["memory_mb"] == 256
        assert again.id not in (sandbox.id, other.id)
        assert again.save("analysis").executions >= 1
    with Sandbox(saved="analysis") as third:
        assert third.run("rows").result == "[3, 1, 2, 4]"
    sandcell.drop_saved("analysis")
    assert sandcell.saved() == []


def test_only_the_files_can_be_opened(sandbox: Sandbox) -> None:
    sandbox.run("x = 1; n = open('kept.txt', 'w').write('old')").check()
    sandbox.save("state")
    with Sandbox(saved="state", only_files=True) as again:
        assert again.run("'x' in dir(), open('kept.txt').read()").result == "(False, 'old')"


def test_a_checkpoint_can_be_saved(sandbox: Sandbox) -> None:
    sandbox.run("x = 1").check()
    kept = sandbox.checkpoint("first")
    sandbox.run("x = 2").check()
    sandbox.save("state", checkpoint=kept)
    with Sandbox(saved="state") as again:
        assert again.run("x").result == "1"


def test_what_cannot_be_saved_or_opened_is_refused(sandbox: Sandbox) -> None:
    sandbox.run("x = 0").check()
    for name in ("", "-1", "a b", "../a", "a" * 65, ".a"):
        with pytest.raises(sandcell.InvalidArgumentError):
            sandbox.save(name)
    sandbox.save("state")
    with pytest.raises(sandcell.NotFoundError) as caught:
        Sandbox(saved="sate").open()
    assert "state" in caught.value.remedy
    with pytest.raises(sandcell.NotFoundError):
        sandcell.drop_saved("sate")
    with pytest.raises(sandcell.InvalidArgumentError):
        Sandbox(saved="state", packages=["numpy"]).open()
    with pytest.raises(sandcell.NotFoundError):
        sandbox.save("other", checkpoint="absent")
    sandbox.run(STARTS_A_THREAD).check()
    with pytest.raises(sandcell.CheckpointUnavailableError, match="threads"):
        sandbox.save("other")
    assert [one.name for one in sandcell.saved()] == ["state"]
    assert sandbox.run("end.set(); x").result == "1"


def test_the_same_can_be_awaited() -> None:
    async def work() -> None:
        async with AsyncSandbox() as sandbox:
            await sandbox.run("x = 1")
            saved = await sandbox.save("state")
        async with AsyncSandbox(saved=saved) as again:
            assert (await again.run("x")).result == "1"

    asyncio.run(asyncio.wait_for(work(), 120))
