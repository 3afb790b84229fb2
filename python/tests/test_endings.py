"""However Python ends, nothing of it is left: no process, and no code that runs on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from conftest import SOURCE, alive, descendants, program, until

import sandcell
from sandcell import Sandbox

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks at processes in /proc")

BEGIN = """
import atexit, os, signal, sys, threading, time, sandcell
sandbox = sandcell.Sandbox().open()
sandbox.run("x = 1").check()
busy = threading.Thread(target=lambda: sandbox.run("import time; time.sleep(600)", timeout=700), daemon=True)
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("", 0),
        ("sandbox.close()", 0),
        ("del sandbox", 0),
        ("raise ValueError", 1),
        ("sys.exit(3)", 3),
        ("os._exit(4)", 4),
        ("busy.start(); time.sleep(0.1)", 0),
        ("busy.start(); time.sleep(0.1); os._exit(5)", 5),
        ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", -signal.SIGTERM),
        ("os.kill(os.getpid(), signal.SIGKILL); time.sleep(60)", -signal.SIGKILL),
        ("os.abort()", -signal.SIGABRT),
        ("sandcell.shutdown(); sandcell.run('1')", 0),
        ("atexit.register(lambda: print(sandcell.run('print(7)').stdout))", 0),
        ("os.closerange(3, 256)", None),
    ],
)
def test_nothing_is_left_when_python_ends(end: str, status: int | None) -> None:
    with program(BEGIN + end) as child:
        assert child.stdout
        assert child.stdout.readline() == "ready\n"
        left = descendants(child.pid)
        assert left
        _, errors = child.communicate("\n", timeout=60)
    if status is not None:
        assert child.returncode == status, errors
    assert "sandcell/_stdio" not in errors
    until(lambda: not alive(left))


def test_a_fork_has_a_server_of_its_own_and_leaves_the_parents_alone() -> None:
    code = """
import os, sys, sandcell
sandbox = sandcell.Sandbox().open()
sandbox.run("x = 1").check()
child = os.fork()
if child == 0:
    try:
        sandbox.run("1")
    except sandcell.SessionLostError as error:
        assert "forked" in error.message and error.remedy
    else:
        os._exit(2)
    del sandbox
    assert sandcell.run("print(2)").stdout == "2\\n"
    with sandcell.Sandbox() as own:
        assert own.run("1 + 1").result == "2"
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert sandbox.run("x").result == "1"
print("fine")
"""
    with program(code) as parent:
        output, errors = parent.communicate(timeout=60)
    assert output == "fine\n", errors


def test_a_fork_that_lives_longer_does_not_keep_the_server() -> None:
    code = """
import os, sys, time, sandcell
sandcell.Sandbox().open()
child = os.fork()
if child == 0:
    os.close(1)
    sys.stdin.readline()
    os._exit(0)
print(child, flush=True)
time.sleep(60)
"""
    with program(code) as parent:
        assert parent.stdout
        number = int(parent.stdout.readline())
        everybody = descendants(parent.pid)
        fork = {found for found in everybody if found[0] == number}
        parent.kill()
        until(lambda: not alive(everybody - fork))
        assert alive(fork)
        parent.communicate("\n")
    until(lambda: not alive(fork))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_works_with_each_start_method(method: str, tmp_path: Path) -> None:
    code = f"""
import multiprocessing, sandcell
def work(number):
    return sandcell.run(f"print({{number}})").stdout
if __name__ == "__main__":
    assert sandcell.run("print(0)").stdout == "0\\n"
    with multiprocessing.get_context({method!r}).Pool(2) as pool:
        print(pool.map(work, range(4)))
"""
    # The children of two methods import the main module again, so it has to be a file.
    (tmp_path / "main.py").write_text(code)
    with program(f"import runpy; runpy.run_path({str(tmp_path / 'main.py')!r}, run_name='__main__')") as parent:
        output, errors = parent.communicate(timeout=90)
    assert output.strip() == str([f"{number}\n" for number in range(4)]), errors


@pytest.mark.parametrize("follows", [False, True])
def test_ctrl_c_ends_the_code_inside_and_keeps_the_variables(follows: bool) -> None:
    code = f"""
import os, signal, sys, threading, time, sandcell
signal.signal(signal.SIGINT, signal.default_int_handler)
def interrupt():
    while sandbox.status()["state"] != "busy":
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
with sandcell.Sandbox() as sandbox:
    sandbox.run("x = 5").check()
    threading.Thread(target=interrupt).start()
    try:
        sandbox.run("import time; time.sleep(600)", timeout=700, on_stdout={"print" if follows else None})
    except KeyboardInterrupt:
        print(sandbox.run("x").result, [record.status for record in sandbox.history()][1], flush=True)
"""
    with program(code) as child:
        output, errors = child.communicate(timeout=60)
    assert output == "5 cancelled\n", errors


def test_ctrl_c_in_the_terminal_does_not_reach_the_server() -> None:
    sandcell.run("1")
    from sandcell._stdio import _local

    assert _local.server is not None
    assert os.getpgid(_local.server._process.pid) != os.getpgid(0)


#: Defines ``interrupted``, which interrupts an action after a time, and counts the interrupts that struck.
INTERRUPTS = """
import signal, sandcell
armed = False
fired = 0
def strike(number, frame):
    if armed:
        raise KeyboardInterrupt
signal.signal(signal.SIGALRM, strike)
def interrupted(seconds, action):
    global armed, fired
    try:
        armed = True
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            action()
        finally:
            armed = False
    except KeyboardInterrupt:
        armed = False
        fired += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
"""


def test_interrupts_at_any_moment_break_nothing() -> None:
    code = """
def work():
    sandbox.run("x")
    sandbox.files.write("file", "y" * 50_000)
with sandcell.Sandbox() as sandbox:
    sandbox.run("x = 5").check()
    for step in range(150):
        interrupted(0.0002 + 0.0001 * step, work)
    assert fired, "no interrupt struck"
    assert sandbox.run("x").result == "5"
print("fine")
"""
    with program(INTERRUPTS + code) as child:
        output, errors = child.communicate(timeout=90)
    assert output == "fine\n", errors


def test_a_sandbox_whose_making_was_interrupted_can_be_used_again() -> None:
    code = """
sandcell.run("1")
for step in range(100):
    sandbox = sandcell.Sandbox()
    interrupted(0.0002 + 0.00005 * step, lambda: sandbox.run("x = 1").check())
    assert sandbox.run("6 * 7").check().result == "42"
    sandbox.close()
assert fired, "no interrupt struck"
print("fine")
"""
    with program(INTERRUPTS + code) as child:
        output, errors = child.communicate(timeout=90)
    assert output == "fine\n", errors


def test_a_server_that_is_killed_is_named_and_replaced() -> None:
    from sandcell._stdio import _local

    sandbox = Sandbox().open()
    assert _local.server is not None
    process = _local.server._process
    left = descendants(process.pid)
    waiting: list[sandcell.SandcellError] = []

    def run() -> None:
        try:
            sandbox.run("import time; time.sleep(600)", timeout=700)
        except sandcell.SandcellError as error:
            waiting.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: sandbox.status()["state"] == "busy")
    process.kill()
    thread.join(30)
    assert waiting[0].code == "session_lost"
    assert waiting[0].remedy
    for use in (lambda: sandbox.run("1"), lambda: sandbox.files.read("x"), sandbox.status):
        with pytest.raises(sandcell.SessionLostError):
            use()
    sandbox.close()
    assert sandcell.run("print(1)").stdout == "1\n"
    until(lambda: not alive(left))


def test_no_descriptor_or_thread_is_left_after_a_shutdown() -> None:
    sandcell.shutdown()
    threads = threading.active_count()
    descriptors = os.listdir("/proc/self/fd")
    for _ in range(3):
        with Sandbox() as sandbox:
            sandbox.run("1").check()
        sandcell.shutdown()
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == len(descriptors)


def test_importing_the_package_starts_nothing_and_imports_little() -> None:
    code = "import sys, sandcell; print(' '.join(sys.modules))"
    output = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={**os.environ, "PYTHONPATH": SOURCE},
        capture_output=True,
        text=True,
        check=True,
    )
    heavy = {"asyncio", "subprocess", "ssl", "http.client", "dataclasses", "inspect", "logging", "concurrent", "email"}
    assert not heavy & set(output.stdout.split())
