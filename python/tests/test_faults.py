"""Servers that misbehave: every one ends in an exception of ours, within a bound."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

import pytest
from conftest import until

import sandcell
from sandcell import _operations, _stdio

Serve = Callable[[str], None]

#: What the fake servers share: they read a request and answer it with facts about an execution.
PRELUDE = """
import json, os, sys, time

def answer(line, result):
    print(json.dumps({"jsonrpc": "2.0", "id": json.loads(line).get("id"), "result": result}), flush=True)

def ran(line, stdout, **facts):
    facts = {"status": "ok", "stdout": stdout, "stderr": "", "result": None, **facts}
    answer(line, {"content": [], "_meta": {"sandcell/execution": facts}})
"""


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Puts a program of the test's in the place of the server; bounds are short."""
    sandcell.shutdown()
    monkeypatch.setattr(_stdio, "_END_TIMEOUT", 0.5)
    monkeypatch.setattr(_operations, "_ANSWER_TIMEOUT", 0.5)
    monkeypatch.setattr(_operations, "_PREPARE_TIMEOUT", 0.5)
    monkeypatch.setattr(_operations, "_WAIT", 0.0)

    def put(body: str) -> None:
        path = tmp_path / "sandcell"
        path.write_text(f"#!{sys.executable}\n{PRELUDE}{textwrap.dedent(body)}")
        path.chmod(0o755)
        monkeypatch.setenv("SANDCELL_BIN", str(path))

    yield put
    sandcell.shutdown()


def failure() -> sandcell.SandcellError:
    with pytest.raises(sandcell.SandcellError) as caught:
        sandcell.run("print(1)")
    assert caught.value.message
    assert caught.value.remedy
    return caught.value


def test_a_server_that_does_not_start_tells_why(serve: Serve) -> None:
    serve("print('no isolation here', file=sys.stderr); sys.exit(3)")
    error = failure()
    assert error.code == "backend_unavailable"
    assert "no isolation here" in error.message
    assert "exit status 3" in error.message


def test_a_server_that_dies_in_the_middle_is_a_lost_session(serve: Serve) -> None:
    serve(
        """
        for number, line in enumerate(sys.stdin):
            if number == 1:
                os._exit(9)
            answer(line, {"structuredContent": {"sandbox_id": "sb"}})
        """
    )
    sandbox = sandcell.Sandbox().open()
    with pytest.raises(sandcell.SessionLostError, match="exit status 9"):
        sandbox.run("1")


@pytest.mark.parametrize(
    "answer",
    [
        "'garbage'",
        "'{\"id\": 1'",
        "'[' * 100_000",
        "'\\udcff'.encode('utf-8', 'surrogateescape').decode('latin-1')",
        "json.dumps({'jsonrpc': '2.0', 'id': 1, 'result': None})",
        "json.dumps({'jsonrpc': '2.0', 'id': 1, 'result': 5})",
        "json.dumps({'jsonrpc': '2.0', 'id': 1, 'result': {'content': 5, '_meta': 7}})",
        "json.dumps({'jsonrpc': '2.0', 'id': 1, 'error': {'code': -32602, 'message': 'unknown tool'}})",
        "json.dumps({'jsonrpc': '2.0', 'id': 1, 'error': 5})",
        "json.dumps({'jsonrpc': '2.0', 'id': 1, 'result': {'isError': True}})",
        "json.dumps({'jsonrpc': '2.0', 'id': 2, 'result': {}})",
        "json.dumps({'jsonrpc': '2.0', 'id': None, 'error': {'code': 1, 'message': 'x'}})",
        "json.dumps([1, 2])",
    ],
)
def test_answers_that_make_no_sense_are_errors_of_ours(serve: Serve, answer: str) -> None:
    serve(f"sys.stdin.readline()\nprint({answer}, flush=True)\ntime.sleep(20)")
    started = time.monotonic()
    failure()
    assert time.monotonic() - started < 15


def test_a_line_without_end_is_cut_off(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_stdio, "MAX_ANSWER", 1 << 20)
    monkeypatch.setattr(_operations, "_ANSWER_TIMEOUT", 20.0)
    serve("while True: os.write(1, b'x' * 65536)")
    assert "line of more than" in failure().message


def test_a_server_that_never_answers_is_given_up(serve: Serve) -> None:
    serve("time.sleep(60)")
    assert failure().code == "timeout"


def test_a_server_that_reads_nothing_is_given_up(serve: Serve) -> None:
    serve("time.sleep(60)")
    with pytest.raises(sandcell.TimedOutError):
        sandcell.run("#" * 900_000)


def test_a_server_that_says_running_for_ever_is_given_up(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_operations, "_QUEUE_TIMEOUT", 0.2)
    serve(
        """
        for line in sys.stdin:
            ran(line, "", status="running", execution_id="ex")
        """
    )
    with pytest.raises(sandcell.TimedOutError):
        sandcell.run("1", timeout=0.1)


def test_a_flood_on_standard_error_stops_nothing(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_operations, "_ANSWER_TIMEOUT", 20.0)
    serve(
        """
        for line in sys.stdin:
            sys.stderr.write("x" * (4 << 20))
            ran(line, "1")
        """
    )
    assert sandcell.run("1").stdout == "1"


def test_a_server_that_does_not_end_is_killed(serve: Serve) -> None:
    serve(
        """
        import signal
        line = sys.stdin.readline()
        ran(line, str(os.getpid()))
        while True: time.sleep(60)
        """
    )
    pid = int(sandcell.run("1").stdout)
    sandcell.shutdown()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize("path", ["/does/not/exist", "/etc/passwd", "/etc"])
def test_a_program_that_is_none_is_named(serve: Serve, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setenv("SANDCELL_BIN", path)
    error = failure()
    assert error.code == "backend_unavailable"
    assert path in error.message


def test_a_missing_program_has_a_remedy(serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SANDCELL_BIN", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(_stdio, "__file__", str(tmp_path / "a/b/c/d/e/_stdio.py"))
    assert "SANDCELL_BIN" in failure().remedy


def test_the_program_is_found_where_pip_put_it_before_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SANDCELL_BIN", raising=False)
    for folder in ("env/bin", "path"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "sandcell").write_text("#!/bin/sh\n")
        (tmp_path / folder / "sandcell").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(sys, "executable", "")
    monkeypatch.setattr(_stdio, "__file__", str(tmp_path / "env/lib/python3/site-packages/sandcell/_stdio.py"))
    assert _stdio.find_program() == str(tmp_path / "env/bin/sandcell")
    (tmp_path / "env/bin/sandcell").chmod(0o644)
    assert _stdio.find_program() == str(tmp_path / "path/sandcell")


def test_the_server_can_be_configured_before_its_first_use(serve: Serve) -> None:
    serve(
        """
        line = sys.stdin.readline()
        ran(line, json.dumps([sys.argv[1:], os.environ.get("SANDCELL_LOG"), "SANDCELL_BIN" in os.environ]))
        sys.stdin.readline()
        """
    )
    sandcell.configure("--mount", "/data", env={"SANDCELL_LOG": "error"})
    try:
        said = sandcell.run("1").stdout
        words, log, has_program = json.loads(said)
        assert (words[:3], words[-2:]) == (["serve", "--toolset", "sandbox"], ["--mount", "/data"])
        assert (log, has_program) == ("error", False)
        with pytest.raises(sandcell.BusyError):
            sandcell.configure()
    finally:
        sandcell.shutdown()
        sandcell.configure()


def test_sandboxes_can_run_the_python_of_this_program(serve: Serve) -> None:
    serve("ran(sys.stdin.readline(), os.environ.get('SANDCELL_PYTHON', '')); sys.stdin.readline()")
    with pytest.raises(sandcell.InvalidArgumentError):
        sandcell.configure(python=3)  # type: ignore[arg-type]
    sandcell.configure(python=Path("bin/python"))
    try:
        assert sandcell.run("1").stdout == os.path.abspath("bin/python")
    finally:
        sandcell.shutdown()
        sandcell.configure()


def test_a_limit_that_somebody_chose_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name = "SANDCELL_LIMITS__SANDBOXES_PER_CALLER"
    monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert _stdio._environment({})[name] == "256"
    assert _stdio._environment({name: "3"})[name] == "3"
    (tmp_path / "sandcell").mkdir()
    (tmp_path / "sandcell/config.toml").write_text("[limits]\nsandboxes_per_caller = 4\n")
    assert name not in _stdio._environment({})


@pytest.mark.parametrize("follows", [False, True])
def test_code_whose_id_arrives_after_the_cancellation_is_ended(serve: Serve, tmp_path: Path, follows: bool) -> None:
    seen = tmp_path / "seen"
    serve(
        f"""
        first = sys.stdin.readline()
        open({str(tmp_path / "asked")!r}, "w").close()
        while not os.path.exists({str(tmp_path / "struck")!r}): time.sleep(0.01)
        ran(first, "", status="running", execution_id="ex5")
        for line in sys.stdin:
            if "cancel_execution" in line:
                open({str(seen)!r}, "w").write(json.loads(line)["params"]["arguments"]["execution_id"])
        """
    )

    async def main() -> None:
        task = asyncio.ensure_future(sandcell.run_async("1", on_stdout=print if follows else None))
        while not (tmp_path / "asked").exists():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    (tmp_path / "struck").touch()
    until(lambda: seen.exists() and seen.read_text() == "ex5")


def test_a_sandbox_that_takes_long_is_asked_for_again_by_its_key(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_operations, "_WAIT", 0.05)
    monkeypatch.setattr(_operations, "_PREPARE_TIMEOUT", 20.0)
    serve(
        """
        keys = []
        for line in sys.stdin:
            keys.append(json.loads(line)["params"]["arguments"].get("key"))
            if len(keys) < 3:
                time.sleep(0.06)
                failure = {"code": "busy", "message": "still being made", "remedy": "wait"}
                answer(line, {"isError": True, "_meta": {"sandcell/error": failure}})
            elif len(keys) == 3:
                answer(line, {"structuredContent": {"sandbox_id": "sb" + str(len(set(keys)))}})
            else:
                answer(line, {})
        """
    )
    with sandcell.Sandbox() as sandbox:
        assert sandbox.id == "sb1"


def test_a_busy_server_is_not_asked_again_and_again(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_operations, "_WAIT", 20.0)
    serve(
        """
        for number, line in enumerate(sys.stdin):
            failure = {"code": "busy", "message": f"request {number}", "remedy": "wait"}
            answer(line, {"isError": True, "_meta": {"sandcell/error": failure}})
        """
    )
    with pytest.raises(sandcell.BusyError, match="request 0"):
        sandcell.Sandbox().open()
