"""What a run is."""

from __future__ import annotations

import base64
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import sandcell
from sandcell import Sandbox

PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==")


def test_streams_and_value_come_apart_whatever_the_code_prints(sandbox: Sandbox) -> None:
    run = sandbox.run("import sys\nprint('result: fake')\nprint('error: fake', file=sys.stderr)\n6 * 7")
    assert (run.stdout, run.stderr, run.result) == ("result: fake\n", "error: fake\n", "42")
    assert run.ok
    assert run.status == "ok"
    assert run.exit_code == 0
    assert run.error is None
    assert run.cause is None
    assert run.check() is run
    assert run.sandbox_id == sandbox.id
    assert "result: fake" in run.text


def test_variables_stay_from_run_to_run(sandbox: Sandbox) -> None:
    sandbox.run("x = 20").check()
    assert sandbox.run("x + 1").result == "21"
    assert sandbox.run("echo $((20 + 2))", language="bash").stdout == "22\n"
    sandbox.reset()
    run = sandbox.run("x")
    assert run.error is not None
    assert run.error.name == "NameError"


def test_one_throwaway_run_keeps_nothing() -> None:
    assert sandcell.run("x = 1; print(1)").stdout == "1\n"
    assert sandcell.run("x").status == "error"


def test_a_run_without_output_is_empty_everywhere(sandbox: Sandbox) -> None:
    run = sandbox.run("x = 1")
    assert (run.stdout, run.stderr, run.result, run.images, run.artifacts) == ("", "", None, [], [])


def test_failing_code_is_a_result_and_check_raises_it(sandbox: Sandbox) -> None:
    run = sandbox.run("def f():\n    return 1 / 0\nf()")
    assert not run.ok
    assert run.status == "error"
    assert run.error is not None
    assert (run.error.name, run.error.value) == ("ZeroDivisionError", "division by zero")
    assert "line 2" in run.error.traceback
    assert run.cause is not None
    assert run.cause.code == "code_failed"
    assert run.cause.remedy
    with pytest.raises(sandcell.CodeFailedError, match="ZeroDivisionError") as caught:
        run.check()
    assert caught.value.run is run
    assert caught.value.remedy == run.cause.remedy


def test_code_that_takes_too_long_is_stopped_and_variables_stay(sandbox: Sandbox) -> None:
    sandbox.run("x = 1").check()
    run = sandbox.run("while True: pass", timeout=0.3)
    assert run.status == "timeout"
    with pytest.raises(sandcell.TimedOutError):
        run.check()
    assert sandbox.run("x").result == "1"


def test_limits_of_the_sandbox_hold() -> None:
    with Sandbox(memory_mb=64, env={"COLOUR": "red"}, label="small", cpus=0.5, disk_mb=32, lifetime=600) as sandbox:
        assert sandbox.run("import os; os.environ['COLOUR']").result == "'red'"
        with pytest.raises(sandcell.OutOfMemoryError):
            sandbox.run("x = bytearray(200 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1").check()
        limits = sandbox.status()["limits"]
        assert (limits["memory_mb"], limits["disk_mb"], limits["cpus"]) == (64, 32, 0.5)


def test_standard_input_is_read(sandbox: Sandbox) -> None:
    assert sandbox.run("input() + '!'", stdin="hello\n").result == "'hello!'"
    assert sandcell.run("print(input())", stdin="once").stdout == "once\n"


def test_output_arrives_while_the_code_runs(sandbox: Sandbox) -> None:
    heard: list[str] = []
    errors: list[str] = []
    seen: list[bool] = []

    def on_stdout(text: str) -> None:
        heard.append(text)
        # The code ends when it finds this file, so what was heard before cannot have come with the end.
        seen.append(sandbox.files.write("go", "") == 0)

    code = (
        "import os, sys, time\nprint('first', flush=True)\n"
        "while not os.path.exists('go'): time.sleep(0.01)\n"
        "print('é' * 50_000)\nprint('oops', file=sys.stderr)\n7"
    )
    run = sandbox.run(code, on_stdout=on_stdout, on_stderr=errors.append)
    assert run.result == "7"
    assert heard[0] == "first\n"
    assert "".join(heard) == "first\n" + "é" * 50_000 + "\n" == run.stdout
    assert errors == ["oops\n"]
    assert seen


def test_an_exception_of_a_callback_ends_the_code(sandbox: Sandbox) -> None:
    def on_stdout(text: str) -> None:
        raise KeyError(text)

    with pytest.raises(KeyError):
        sandbox.run("import time\nprint('x', flush=True)\ntime.sleep(600)", timeout=700, on_stdout=on_stdout)
    assert sandbox.run("1").ok


def test_a_coroutine_function_as_callback_is_refused_here(sandbox: Sandbox) -> None:
    async def on_stdout(text: str) -> None:
        pass

    with pytest.raises(sandcell.InvalidArgumentError, match="coroutine"):
        sandbox.run("print(1)", on_stdout=on_stdout)


def test_long_output_is_read_up_to_a_bound(sandbox: Sandbox) -> None:
    run = sandbox.run("print('é' * 30_000)")
    assert run.stdout == "é" * 30_000 + "\n"
    assert not run.truncated
    run = sandbox.run("print('x' * 30_000_000)", max_output=50_000)
    assert run.stdout == "x" * 50_000
    assert run.truncated


def test_bytes_that_are_no_text_are_replaced(sandbox: Sandbox) -> None:
    run = sandbox.run("import sys\nn = sys.stdout.buffer.write(b'\\xff ok\\n')")
    assert run.stdout == "\ufffd ok\n"


def test_pictures_and_html_are_at_hand(sandbox: Sandbox, tmp_path: Path) -> None:
    code = f"class Dot:\n    def _repr_png_(self):\n        return {PIXEL!r}\nDot()"
    run = sandbox.run(code)
    assert run.images[0].mime == "image/png"
    run.images[0].save(tmp_path / "dot.png")
    assert (tmp_path / "dot.png").read_bytes().startswith(b"\x89PNG")
    run = sandbox.run("class Bold:\n    def _repr_html_(self):\n        return '<b>5</b><script>x</script>'\nBold()")
    assert run.html == "<b>5</b><script>x</script>"
    assert sandbox.fetch(run.artifacts[0]) == b"<b>5</b><script>x</script>"


def test_a_notebook_shows_runs_and_runs_none_of_their_scripts(sandbox: Sandbox) -> None:
    run = sandbox.run(
        "print('<script>a</script>')\nclass H:\n    def _repr_html_(self):\n        return '<script>b</script>'\nH()"
    )
    page = run._repr_html_()
    assert "<script>" not in page
    assert '<iframe sandbox=""' in page
    page = sandbox.run("raise ValueError('<script>')")._repr_html_()
    assert "<script>" not in page
    assert "ValueError" in page


def test_files_go_in_and_outputs_come_back() -> None:
    run = sandcell.run(
        "import os\nos.makedirs('a'); os.makedirs('b')\n"
        "for d in 'ab': open(d + '/out.bin', 'wb').write(d.encode() + b'\\xff\\x00')\n"
        "print(open('in.txt').read())",
        files={"in.txt": "hé"},
        outputs=["a/out.bin", "missing.txt", "b/out.bin"],
    )
    assert run.stdout == "hé\n"
    assert run.files == {"a/out.bin": b"a\xff\x00", "b/out.bin": b"b\xff\x00"}


def test_the_history_has_the_latest_run_first(sandbox: Sandbox) -> None:
    sandbox.run("first = 1")
    run = sandbox.run("second = 2")
    records = sandbox.history(2)
    assert [record.code_preview for record in records] == ["second = 2", "first = 1"]
    assert records[0].execution_id == run.execution_id
    assert records[0].status == "ok"


def test_packages_that_are_not_there_are_named(sandbox: Sandbox) -> None:
    with pytest.raises(sandcell.InvalidArgumentError):
        sandbox.install("no spaces allowed")
    with pytest.raises(sandcell.InvalidArgumentError):
        sandbox.install("../../etc")


def test_a_language_or_network_that_is_not_there_is_refused_with_a_remedy(sandbox: Sandbox) -> None:
    with pytest.raises(sandcell.LanguageUnavailableError) as caught:
        sandbox.run("1", language="klingon")
    assert "python" in caught.value.remedy
    with pytest.raises(sandcell.NetworkDeniedError):
        Sandbox(network=["example.com"]).open()


def test_closed_sandboxes_say_so() -> None:
    sandbox = Sandbox()
    assert sandbox.id is None
    sandbox.run("1").check()
    sandbox.close()
    sandbox.close()
    assert sandbox.closed
    with pytest.raises(sandcell.ExpiredError, match="closed") as caught:
        sandbox.run("1")
    assert "Sandbox" in caught.value.remedy
    with pytest.raises(sandcell.ExpiredError):
        sandbox.files.read("x")


def test_a_sandbox_that_nobody_holds_any_more_is_closed(sandbox: Sandbox) -> None:
    from conftest import until

    forgotten = Sandbox().open()
    number = forgotten.id
    assert number is not None

    def listed() -> bool:
        status = sandbox._core.channel.start("tools/call", {"name": "get_sandbox_status", "arguments": {}})
        assert status.wait(30)
        return any(found["sandbox_id"] == number for found in status.result()["structuredContent"]["sandboxes"])

    assert listed()
    del forgotten
    until(lambda: not listed())


EXACT = "\x1b[31mred\x1b[0m\r\n" + "same\n" * 50 + "10%\r20%\r\x07\x00\tend"


def test_output_is_exactly_what_the_code_printed(sandbox: Sandbox) -> None:
    heard: list[str] = []
    run = sandbox.run(f"import sys; sys.stdout.write({EXACT!r}); sys.stderr.write({EXACT!r})", on_stdout=heard.append)
    assert (run.stdout, run.stderr, run.truncated) == (EXACT, EXACT, False)
    assert "".join(heard) == EXACT
    assert sandbox.command(["printf", "%b", EXACT.replace("\0", "\\0000")]).stdout == EXACT
    assert sandbox.command("yes | head -n 1000").stdout == "y\n" * 1000
    assert sandbox.command(r"printf 'a\377b\n'").stdout == "a\ufffdb\n"
    assert sandbox.run("class A:\n  def __repr__(self): return 'line\\n' * 40\nA()").result == "line\n" * 40
    assert sandcell.run(f"print({EXACT!r})").stdout == EXACT + "\n"


def test_large_output_is_read_in_few_parts(sandbox: Sandbox) -> None:
    run = sandbox.run("print('é' * 6_000_000)", max_output=32 << 20)
    assert run.stdout == "é" * 6_000_000 + "\n"
    assert not run.truncated


def test_output_beyond_what_is_kept_is_marked(sandbox: Sandbox) -> None:
    run = sandbox.run("print('é' * (17 << 20), end='')", max_output=64 << 20)
    assert run.truncated
    assert "bytes were not kept" in run.stdout
    assert "\ufffd\ufffd" not in run.stdout
    assert sandbox.run("print('x' * 15000)", max_output=100).stdout == "x" * 100


def test_a_run_is_a_result_also_when_its_output_is_gone(sandbox: Sandbox) -> None:
    def one(_: int) -> sandcell.Run:
        return sandbox.command("head -c 10000000 /dev/zero | tr '\\0' x; sleep .3", max_output=64 << 20)

    with ThreadPoolExecutor(3) as threads:
        runs = list(threads.map(one, range(3)))
    assert [run.exit_code for run in runs] == [0, 0, 0]
    assert all(run.truncated or len(run.stdout) == 10_000_000 for run in runs)


def test_threads_share_a_sandbox_and_a_server(sandbox: Sandbox) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(lambda number: sandbox.run(f"{number} * 2").result, range(24)))
        fresh = list(pool.map(lambda number: sandcell.run(f"print({number})").stdout, range(24)))
    assert runs == [str(2 * number) for number in range(24)]
    assert fresh == [f"{number}\n" for number in range(24)]


def test_errors_keep_what_they_say_when_they_are_pickled() -> None:
    error = sandcell.NotFoundError("gone", "look again")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is sandcell.NotFoundError
    assert (again.code, again.message, again.remedy) == ("not_found", "gone", "look again")
    assert str(again) == "not_found: gone\nWhat to do: look again"
