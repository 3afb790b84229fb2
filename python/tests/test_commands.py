"""Commands next to the sessions of a sandbox, in the foreground and in the background."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from conftest import program, until

import sandcell
from sandcell import AsyncSandbox, Process, Sandbox


def test_a_line_is_run_by_a_shell_and_a_list_is_not(sandbox: Sandbox) -> None:
    assert sandbox.command("echo $((6 * 7)) | tr 4 5").stdout == "52\n"
    assert sandbox.command(["echo", "$HOME", "", "it's", "*"]).stdout == "$HOME  it's *\n"
    assert sandbox.command(["printf", "[%s]", "", "a b"]).stdout == "[][a b]"
    assert sandbox.command("echo $0").stdout == "bash\n"


def test_exit_codes_and_both_streams_come_back(sandbox: Sandbox) -> None:
    run = sandbox.command("echo out; echo err >&2; exit 7")
    assert (run.status, run.exit_code, run.stdout, run.stderr) == ("error", 7, "out\n", "err\n")
    assert run.language == "command"
    with pytest.raises(sandcell.CodeFailedError) as caught:
        run.check()
    assert caught.value.run is run
    fine = sandbox.command("true")
    assert (fine.ok, fine.exit_code, fine.cause) == (True, 0, None)
    assert fine.check() is fine


def test_a_program_that_does_not_exist_is_named_with_exit_code_127(sandbox: Sandbox) -> None:
    run = sandbox.command(["no-such-program", "-x"])
    assert (run.status, run.exit_code) == ("error", 127)
    assert run.cause is not None
    assert run.cause.code == "not_found"
    assert "no-such-program" in run.cause.message
    in_shell = sandbox.command("no-such-program -x")
    assert in_shell.exit_code == 127
    assert "no-such-program" in in_shell.stderr
    assert sandbox.command(["/etc/passwd"]).exit_code == 126
    assert sandbox.start(["no-such-program"]).wait().exit_code == 127


def test_folder_and_variables(sandbox: Sandbox) -> None:
    assert sandbox.command("pwd").stdout == "/home/user\n"
    sandbox.command("mkdir -p project/src").check()
    assert sandbox.command("pwd", cwd="project/src").stdout == "/home/user/project/src\n"
    assert sandbox.command(["pwd"], cwd=Path("/tmp")).stdout == "/tmp\n"
    run = sandbox.command("echo $OWN-$HOME", env={"OWN": "a  b"})
    assert run.stdout == "a b-/home/user\n"
    with Sandbox(env={"BASE": "1", "OTHER": "2"}) as other:
        assert other.command("echo $BASE $OTHER", env={"OTHER": "3"}).stdout == "1 3\n"


@pytest.mark.parametrize("streams", [False, True])
def test_a_folder_that_does_not_exist_is_refused(sandbox: Sandbox, streams: bool) -> None:
    heard: list[str] = []
    on_stdout = heard.append if streams else None
    with pytest.raises(sandcell.NotFoundError, match="no/such/folder"):
        sandbox.command("echo started", cwd="no/such/folder", on_stdout=on_stdout)
    with pytest.raises(sandcell.NotFoundError, match="no/such/folder"):
        sandbox.start("echo started", cwd="/no/such/folder")
    with pytest.raises(sandcell.InvalidArgumentError, match="/etc/passwd"):
        sandbox.command("echo started", cwd="/etc/passwd", on_stdout=on_stdout)
    assert heard == []
    # Code of the sandbox that removes its own folder gets no other one.
    sandbox.command("mkdir gone && rmdir gone").check()
    with pytest.raises(sandcell.NotFoundError, match="gone"):
        sandbox.command("pwd", cwd="gone")


def test_commands_run_beside_each_other_and_a_busy_session(sandbox: Sandbox) -> None:
    sandbox.run("kept = 41")
    session = threading.Thread(
        target=lambda: sandbox.run("import os, time\nwhile not os.path.exists('stop'): time.sleep(0.01)\nkept += 1")
    )
    session.start()
    # Each waits for the others, so none ends unless all run at once.
    meet = "touch $0; while ! [ -e a -a -e b -a -e c ]; do sleep 0.01; done; echo $0"
    processes = [sandbox.start(["bash", "-c", meet, name]) for name in "abc"]
    assert [process.wait().stdout for process in processes] == ["a\n", "b\n", "c\n"]
    assert session.is_alive()
    sandbox.command("touch stop").check()
    session.join(30)
    assert sandbox.run("kept").result == "42"


def test_three_sleeps_take_the_time_of_one(sandbox: Sandbox) -> None:
    processes = [sandbox.start("sleep 1000") for _ in range(3)]
    assert all(process.running() for process in processes)
    assert len({process.id for process in processes}) == 3
    for process in processes:
        process.kill()
    assert not any(process.running() for process in processes)


def test_standard_input(sandbox: Sandbox) -> None:
    assert sandbox.command("cat", stdin="grüße\n").stdout == "grüße\n"
    assert sandbox.command(["wc", "-c"], stdin=b"\x00\xff\n").stdout.split() == ["3"]
    assert sandbox.command("cat; echo end").stdout == "end\n"
    assert sandbox.command("cat; echo end", stdin="").stdout == "end\n"


@pytest.mark.parametrize("streams", [False, True])
def test_large_input_is_sent_in_parts(sandbox: Sandbox, streams: bool) -> None:
    data = bytes(range(256)) * 20_000 + b"end"
    heard: list[str] = []
    on_stdout = heard.append if streams else None
    code = "import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())"
    run = sandbox.command(["python3", "-c", code], stdin=data, on_stdout=on_stdout)
    import hashlib

    assert run.stdout.strip() == hashlib.sha256(data).hexdigest()
    if streams:
        assert "".join(heard) == run.stdout


def test_input_that_is_not_read_does_not_hang(sandbox: Sandbox) -> None:
    data = b"x" * (6 << 20)
    assert sandbox.command("echo fine", stdin=data).stdout == "fine\n"
    assert sandbox.command("head -c 3", stdin=data).stdout == "xxx"
    run = sandbox.command("exec 0<&-; echo closed; sleep 0.5", stdin=data)
    assert (run.status, run.stdout) == ("ok", "closed\n")
    run = sandbox.command("sleep 1000", stdin=data, timeout=2)
    assert run.status == "timeout"


def test_output_is_heard_while_the_command_runs(sandbox: Sandbox) -> None:
    out: list[str] = []
    err: list[str] = []

    def heard(text: str) -> None:
        out.append(text)
        if "first" in "".join(out):
            sandbox.files.write("go", "")

    line = "echo first; while ! [ -e go ]; do sleep 0.01; done; echo error >&2; echo second"
    run = sandbox.command(line, on_stdout=heard, on_stderr=err.append)
    assert ("".join(out), "".join(err)) == ("first\nsecond\n", "error\n")
    assert run.stdout == "first\nsecond\n"


def test_an_exception_of_a_callback_ends_the_command(sandbox: Sandbox) -> None:
    def fails(text: str) -> None:
        raise RuntimeError(text)

    with pytest.raises(RuntimeError, match="begun"):
        sandbox.command("touch alive; echo begun; exec sleep 4321", on_stdout=fails)
    until(lambda: not sandbox.command("pgrep -fx 'sleep 4321'").stdout)


def test_binary_output_is_text_with_replacements(sandbox: Sandbox) -> None:
    run = sandbox.command(["printf", r"a\377\376z"])
    assert run.stdout == "a\ufffd\ufffdz"
    sandbox.command("head -c 1000000 /dev/urandom > noise").check()
    noise = sandbox.command("cat noise", max_output=1 << 22)
    assert noise.ok
    assert len(noise.stdout) > 100_000
    assert len(sandbox.files.read("noise")) == 1_000_000


def test_long_output_is_whole_up_to_the_limit(sandbox: Sandbox) -> None:
    run = sandbox.command("seq 50000")
    assert run.stdout == "".join(f"{number}\n" for number in range(1, 50001))
    assert not run.truncated
    part = sandbox.command("seq 50000", max_output=10)
    assert part.truncated
    assert part.stdout.startswith("1\n2\n3\n")


def test_a_command_that_takes_too_long_is_ended_with_its_group(sandbox: Sandbox) -> None:
    run = sandbox.command("sleep 4322 & echo begun; sleep 4322", timeout=0.5)
    assert (run.status, run.stdout) == ("timeout", "begun\n")
    with pytest.raises(sandcell.TimedOutError):
        run.check()
    assert sandbox.command("pgrep -fx 'sleep 4322'").stdout == ""


def test_a_process_takes_input_while_it_runs(sandbox: Sandbox) -> None:
    process = sandbox.start(
        ["python3", "-uc", "import sys\nfor line in sys.stdin: open('last', 'w').write(line)\nprint('end')"]
    )
    assert isinstance(process, Process)
    process.write("one\n")
    until(lambda: sandbox.files.exists("last") and sandbox.files.read("last") == b"one\n")
    process.write(b"two\n")
    until(lambda: sandbox.files.read("last") == b"two\n")
    assert process.running()
    process.close_stdin()
    run = process.wait(30)
    assert (run.stdout, run.exit_code) == ("end\n", 0)
    with pytest.raises(sandcell.ExpiredError):
        process.write("three\n")
    process.close_stdin()
    process.kill()
    assert not process.running()
    assert process.wait().stdout == "end\n"


def test_input_after_its_end_is_refused(sandbox: Sandbox) -> None:
    process = sandbox.start("cat; exec sleep 1000")
    process.close_stdin()
    process.close_stdin()
    with pytest.raises(sandcell.InvalidArgumentError, match="closed"):
        process.write("late")
    process.kill()


def test_large_writes_go_in_parts_and_wait_for_the_reader(sandbox: Sandbox) -> None:
    process = sandbox.start("while ! [ -e read ]; do sleep 0.01; done; wc -c")
    writer = threading.Thread(target=lambda: process.write(b"x" * (5 << 20)))
    writer.start()
    sandbox.command("touch read").check()
    writer.join(60)
    assert not writer.is_alive()
    process.close_stdin()
    assert int(process.wait(30).stdout) == 5 << 20


def test_waiting_has_a_bound_and_the_command_runs_on(sandbox: Sandbox) -> None:
    process = sandbox.start("sleep 1000")
    with pytest.raises(sandcell.TimedOutError, match="runs on"):
        process.wait(0.1)
    assert process.running()
    process.kill()
    run = process.wait()
    assert run.status == "cancelled"
    assert not run.ok


def test_a_stubborn_process_is_killed(sandbox: Sandbox) -> None:
    process = sandbox.start("trap '' INT TERM; touch ready; while :; do sleep 0.05; done")
    until(lambda: sandbox.files.exists("ready"))
    process.kill()
    assert not process.running()
    assert process.wait().status in ("cancelled", "killed")


def test_a_process_has_a_time_limit_if_asked(sandbox: Sandbox) -> None:
    assert sandbox.start("sleep 1000", timeout=0.5).wait(30).status == "timeout"


def test_a_closed_sandbox_ends_its_commands() -> None:
    with Sandbox() as sandbox:
        sandbox.command("true")
        process = sandbox.start("sleep 1000")
        other = sandbox.start("sleep 1000")
        runs: list[sandcell.Run] = []
        waiter = threading.Thread(target=lambda: runs.append(process.wait()))
        waiter.start()
    waiter.join(30)
    assert [run.ok for run in runs] == [False]
    assert not other.running()
    assert not other.wait().ok
    other.kill()
    other.close_stdin()
    with pytest.raises(sandcell.ExpiredError):
        other.write("x")
    with pytest.raises(sandcell.ExpiredError):
        sandbox.command("true")
    with pytest.raises(sandcell.ExpiredError):
        sandbox.start("true")


@pytest.mark.parametrize(
    "arguments",
    [
        {"command": ""},
        {"command": "  "},
        {"command": []},
        {"command": [""]},
        {"command": ["ls", 1]},
        {"command": b"ls"},
        {"command": None},
        {"command": {"ls"}},
        {"command": "ls\0"},
        {"command": "ls", "cwd": ""},
        {"command": "ls", "cwd": 1},
        {"command": "ls", "cwd": "../x"},
        {"command": "ls", "env": ["A"]},
        {"command": "ls", "env": {"A=B": "c"}},
        {"command": "ls", "timeout": 0},
        {"command": "ls", "timeout": "1"},
        {"command": "ls", "stdin": 1},
        {"command": "ls", "on_stdout": 1},
        {"command": "ls", "max_output": 0},
    ],
)
def test_wrong_arguments_are_named(sandbox: Sandbox, arguments: dict[str, object]) -> None:
    with pytest.raises(sandcell.InvalidArgumentError) as caught:
        sandbox.command(**arguments)  # type: ignore[arg-type]
    assert caught.value.message
    assert caught.value.remedy


def test_files_are_removed_without_a_session(sandbox: Sandbox) -> None:
    sandbox.files.write("folder/with space/-x", "1")
    sandbox.files.remove("folder")
    assert not sandbox.files.exists("folder")
    sandbox.command("ln -s nowhere link && chmod 400 /dev/null 2>/dev/null; touch -- -f").check()
    sandbox.files.remove("link")
    sandbox.files.remove("-f")
    with pytest.raises(sandcell.NotFoundError, match="link"):
        sandbox.files.remove("link")
    with pytest.raises(sandcell.DeniedByPolicyError):
        sandbox.files.remove("/usr/bin/env")
    assert sandbox.status()["sessions"] == []


def test_an_interrupt_ends_the_command_inside() -> None:
    code = """
import os, sandcell, signal, threading, time
# A test run in the background of a shell ignores interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
with sandcell.Sandbox() as sandbox:
    def interrupt():
        while not sandbox.files.exists("begun"):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=interrupt, daemon=True).start()
    try:
        sandbox.command("touch begun; exec sleep 4323", timeout=600)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    while sandbox.command("pgrep -fx 'sleep 4323'").stdout:
        pass
    print("ended", flush=True)
"""
    with program(code) as child:
        assert child.communicate(timeout=60)[0] == "interrupted\nended\n"


def test_the_death_of_the_server_ends_a_command() -> None:
    code = """
import os, sandcell, signal, threading
from sandcell import _stdio
sandbox = sandcell.Sandbox().open()
process = sandbox.start("sleep 1000")
threading.Timer(0.5, lambda: os.kill(_stdio._local.server._process.pid, signal.SIGKILL)).start()
for call in (lambda: sandbox.command("sleep 1000", timeout=600), process.wait, process.running, lambda: process.write("x")):
    try:
        print("returned", call())
    except sandcell.SandcellError as error:
        print(error.code)
"""
    with program(code) as child:
        assert child.stdout is not None
        lines = child.stdout.read().split()
        assert len(lines) == 4, child.stderr and child.stderr.read()
        assert set(lines) <= {"session_lost", "backend_unavailable"}


async def _many() -> None:
    async with AsyncSandbox() as sandbox:
        runs = await asyncio.gather(*(sandbox.command(f"echo {number}") for number in range(64)))
        assert [run.stdout for run in runs] == [f"{number}\n" for number in range(64)]


def test_sixty_four_tasks_run_commands() -> None:
    asyncio.run(_many())


async def _cancelled() -> None:
    async with AsyncSandbox() as sandbox:
        heard: list[str] = []

        async def hears(text: str) -> None:
            heard.append(text)

        task = asyncio.create_task(sandbox.command("echo begun; exec sleep 4324", on_stdout=hears))
        while not heard:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(sandbox.command("exec sleep 4324"), 0.5)
        while (await sandbox.command("pgrep -fx 'sleep 4324'")).stdout:
            await asyncio.sleep(0.01)
        process = await sandbox.start("cat")
        await process.write("typed")
        assert await process.running()
        await process.close_stdin()
        assert (await process.wait()).stdout == "typed"
        assert process.id in repr(process).replace("Process", process.id)
        endless = await sandbox.start("sleep 1000")
        await endless.kill()
        assert (await endless.wait()).status == "cancelled"
        data = b"y" * (3 << 20)
        assert (await sandbox.command("wc -c", stdin=data)).stdout.strip() == str(3 << 20)


def test_cancelling_a_task_ends_its_command() -> None:
    asyncio.run(_cancelled())


def test_what_a_command_detaches_outlives_it_and_other_commands(sandbox: Sandbox) -> None:
    waits = ": > started; while [ ! -e release ]; do sleep 0.05; done; : > released"
    sandbox.command(f"(setsid sh -c '{waits}' < /dev/null > /dev/null 2>&1 &)").check()
    until(lambda: sandbox.files.exists("started"))
    sandbox.command("true").check()
    sandbox.command("touch release").check()
    until(lambda: sandbox.files.exists("released"))
