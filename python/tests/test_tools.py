"""Functions of this program that code in a sandbox calls."""

from __future__ import annotations

import asyncio
import contextvars
import enum
import gc
import json
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import blocks_of_guide, program, until
from test_service import Service

import sandcell
from sandcell import AsyncSandbox, Sandbox, _function_calls


class Color(enum.Enum):
    RED = "red"


def add(a: int, b: int = 2) -> int:
    """Adds.

    Args:
        a: the first
    """
    return a + b


async def add_async(a: int, b: int = 2) -> int:
    await asyncio.sleep(0.01)
    return a + b


def fail(text: str) -> None:
    raise LookupError(text)


def paint(color: Color) -> list[str]:
    assert isinstance(color, Color)
    return [color.name]


def threads() -> int:
    return sum(thread.name.startswith("sandcell-function") for thread in threading.enumerate())


def message(sandbox: Sandbox, call: str) -> str:
    """Returns the message of the error that a call raises inside."""
    return sandbox.run(f"try: {call}\nexcept tools.ToolError as error: print(error.message)").check().stdout


# With a server.


def test_code_calls_functions_of_this_program() -> None:
    with Sandbox(tools=[add, add_async, fail, paint]) as sandbox:
        assert sandbox.run("print(tools.functions.add(a=1) + 1)").stdout == "4\n"
        assert sandbox.run("tools.functions.add(a=1, b=5)").result == "6"
        assert sandbox.run("tools.functions.add_async(a=1)").result == "3"
        assert sandbox.run("await tools.functions.add.acall(a=2)").result == "4"
        assert sandbox.run("tools.functions.paint(color='red')").result == "['RED']"
        assert message(sandbox, "tools.functions.fail(text='no é')") == "LookupError: no é\n"
        described = sandbox.run("help(tools.functions.add)").stdout
        assert "Adds." in described
        assert "the first" in described
        assert sandbox.run("tools call functions.add '{\"a\": 3}'", language="bash").stdout.strip() == "5"


def test_arguments_that_do_not_fit_are_refused_before_the_function_runs() -> None:
    seen: list[Any] = []

    def record(number: int) -> None:
        seen.append(number)

    with Sandbox(tools=[record]) as sandbox:
        for arguments in ("number='x'", "number=1.5", "other=1", ""):
            run = sandbox.run(f"tools.functions.record({arguments})")
            assert run.error is not None
            assert run.error.name.endswith("ToolArgumentError"), arguments
        assert sandbox.run("tools.functions.record(number=1)").ok
    assert seen == [1]


def test_coroutine_functions_run_in_the_loop_that_makes_the_sandbox() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        found: list[Any] = []

        async def where(a: int) -> int:
            found.append(asyncio.get_running_loop())
            await asyncio.sleep(0.01)
            return a

        def thread() -> bool:
            return threading.current_thread() is threading.main_thread()

        async with AsyncSandbox(tools=[where, thread, add]) as sandbox:
            assert (await sandbox.run("tools.functions.where(a=5)")).result == "5"
            assert found == [loop]
            assert (await sandbox.run("tools.functions.thread()")).result == "False"
            code = "import asyncio; await asyncio.gather(*(tools.functions.where.acall(a=n) for n in range(12)))"
            assert (await sandbox.run(code)).result == str(list(range(12)))

    asyncio.run(main())


def test_threads_inside_call_at_the_same_time() -> None:
    together = threading.Barrier(8, timeout=30)

    def meet(number: int) -> int:
        together.wait()
        return number

    code = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(8) as pool:
    found = list(pool.map(lambda number: tools.functions.meet(number=number), range(8)))
found
"""
    with Sandbox(tools=[meet]) as sandbox:
        assert sandbox.run(code).result == str(list(range(8)))


def test_each_sandbox_has_its_own_functions() -> None:
    with Sandbox(tools={"name": lambda: "first"}) as first, Sandbox(tools={"name": lambda: "second"}) as second:
        assert first.run("tools.functions.name()").result == "'first'"
        assert second.run("tools.functions.name()").result == "'second'"
    with Sandbox() as plain:
        assert not plain.run("tools.functions.name()").ok


def test_a_function_runs_code_in_another_sandbox() -> None:
    with Sandbox() as other:

        def compute(code: str) -> str | None:
            return other.run(code).check().result

        with Sandbox(tools=[compute]) as sandbox:
            assert sandbox.run("int(tools.functions.compute(code='6 * 7')) + 1").result == "43"


def test_closing_while_a_function_runs_ends_the_run_and_not_the_function() -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        go_on.wait(60)
        ended.set()

    sandbox = Sandbox(tools=[wait]).open()
    faults: list[sandcell.SandcellError] = []

    def run() -> None:
        try:
            sandbox.run("tools.functions.wait()", timeout=120).check()
        except sandcell.SandcellError as error:
            faults.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(60)
    sandbox.close()
    thread.join(60)
    assert faults
    go_on.set()
    assert ended.wait(10)
    until(lambda: threads() == 0)


def test_a_run_that_is_stopped_leaves_the_sandbox_usable() -> None:
    begun = threading.Event()

    def wait() -> None:
        begun.set()
        time.sleep(3)

    with Sandbox(tools=[wait, add]) as sandbox:
        assert sandbox.run("tools.functions.wait()", timeout=1).status == "timeout"
        assert begun.is_set()
        assert sandbox.run("tools.functions.add(a=1)").result == "3"


def test_large_values_arrive_whole_and_larger_ones_are_refused() -> None:
    with Sandbox(tools={"text": lambda size: "é" * size}) as sandbox:
        assert sandbox.run("len(tools.functions.text(size=2_000_000))").result == "2000000"
        assert "at most 8,388,608" in message(sandbox, "tools.functions.text(size=5_000_000)")


def test_an_exchange_without_calls_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_function_calls, "_WAIT", 0.05)
    with Sandbox(tools=[add]) as sandbox:
        code = "import time\nfor n in range(4): time.sleep(0.1); tools.functions.add(a=n)\n'done'"
        assert sandbox.run(code).result == "'done'"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service(tmp_path_factory.mktemp("service"))
    yield service
    service.end()


def test_functions_are_tools_of_a_sandbox_of_a_service(service: Service) -> None:
    with Sandbox(url=service.url, token=service.token, tools=[add, fail]) as sandbox:
        assert sandbox.run("[tools.functions.add(a=n) for n in range(20)]").result == str(list(range(2, 22)))
        assert message(sandbox, "tools.functions.fail(text='no')") == "LookupError: no\n"


def test_the_example_of_the_guide_works(capsys: pytest.CaptureFixture[str]) -> None:
    example = next(block for block in blocks_of_guide("python") if "tools=" in block)
    exec(compile(example, "guide", "exec"), {})
    assert capsys.readouterr().out == "2 orders, 61.5 in all\n"


# With a program in the place of the server. The code of a run is a list of calls in JSON; what it prints are the
# results, and the number of exchanges up to then.

FAKE = """
import json, os, sys
waiting, queue, results, run, exchanges, busy, last = None, [], {}, None, 0, 0, 0

def answer(line, result):
    print(json.dumps({"jsonrpc": "2.0", "id": json.loads(line)["id"], "result": result}), flush=True)

def refuse(line, code):
    failure = {"code": code, "message": "refused", "remedy": "none"}
    answer(line, {"isError": True, "content": [], "_meta": {"sandcell/error": failure}})

for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    name, arguments = request["params"]["name"], request["params"]["arguments"]
    if name == "exchange_tool_calls":
        exchanges += 1
        if busy:
            busy -= 1
            refuse(line, "busy")
            continue
        for result in arguments["results"]:
            results[result.pop("id")] = result
        if arguments["wait_s"]:
            assert waiting is None, "two exchanges wait"
            waiting = line
        elif queue:
            answer(line, {"structuredContent": {"calls": queue}})
            queue = []
        else:
            answer(line, {"structuredContent": {"calls": []}})
    elif name == "execute_code":
        run, results, first = line, {}, last
        code = json.loads(arguments["code"])
        busy = code.get("busy", 0)
        queue = [{"id": first + n, "name": each[0], "arguments": each[1]} for n, each in enumerate(code["calls"], 1)]
        last += len(queue)
        exchanges = 0
    elif name == "close_sandbox":
        answer(line, {"structuredContent": {}})
        if waiting:
            refuse(waiting, "expired")
            waiting = None
    else:
        answer(line, {"structuredContent": {"sandbox_id": "sb"}})
    if waiting and queue:
        answer(waiting, {"structuredContent": {"calls": queue}})
        waiting, queue = None, []
    if run and len(results) == len(code["calls"]):
        facts = {"status": "ok", "stderr": "", "result": str(exchanges)}
        facts["stdout"] = json.dumps([results[number] for number in sorted(results)])
        answer(run, {"content": [], "_meta": {"sandcell/execution": facts}})
        run = None
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    sandcell.shutdown()
    until(lambda: threads() == 0)

    def put(body: str) -> None:
        path = tmp_path / "sandcell"
        path.write_text(f"#!{sys.executable}\n{body}")
        path.chmod(0o755)
        monkeypatch.setenv("SANDCELL_BIN", str(path))

    put(FAKE)
    yield put
    sandcell.shutdown()


def calls(sandbox: Sandbox, *wanted: tuple[str, dict[str, Any]], busy: int = 0) -> tuple[list[dict[str, Any]], int]:
    """Returns the results of calls, and the number of exchanges that they took."""
    run = sandbox.run(json.dumps({"calls": wanted, "busy": busy}), max_output=60 << 20)
    return json.loads(run.stdout), int(run.result or 0)


def test_a_quick_call_takes_one_exchange(fake: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_function_calls, "_QUICK", 5.0)
    with Sandbox(tools=[add, fail]) as sandbox:
        for number in range(20):
            assert calls(sandbox, ("add", {"a": number})) == ([{"value": number + 2}], 1)
        assert calls(sandbox, ("fail", {"text": "x"}), ("none", {}))[0] == [
            {"error": "LookupError: x"},
            {"error": "LookupError: the program has no function none"},
        ]


def test_a_slow_call_does_not_hold_up_others(fake: object) -> None:
    slow = threading.Event()

    def wait() -> str:
        assert slow.wait(30)
        return "slow"

    def release() -> str:
        slow.set()
        return "quick"

    with Sandbox(tools=[wait, release]) as sandbox:
        for _ in range(5):
            slow.clear()
            results, _ = calls(sandbox, *[("wait", {})] * 15, ("release", {}))
            assert results == [{"value": "slow"}] * 15 + [{"value": "quick"}]


def test_at_most_sixteen_functions_of_a_sandbox_run_at_once(fake: object) -> None:
    running, most = 0, 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with lock:
            running -= 1

    with Sandbox(tools=[work]) as sandbox:
        assert len(calls(sandbox, *[("work", {})] * 64)[0]) == 64
    assert most <= 16


def test_results_are_sent_again_when_the_server_is_busy(fake: object) -> None:
    with Sandbox(tools=[add]) as sandbox:
        results, exchanges = calls(sandbox, ("add", {"a": 1}), busy=2)
        assert results == [{"value": 3}]
        assert exchanges >= 3


def test_large_results_are_sent_in_several_exchanges(fake: object) -> None:
    with Sandbox(tools={"text": lambda: "x" * (5 << 20)}) as sandbox:
        results, _ = calls(sandbox, *[("text", {})] * 6)
        assert [len(result["value"]) for result in results] == [5 << 20] * 6


def test_context_variables_are_those_of_the_program_that_makes_the_sandbox(fake: object) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="default")

    async def read() -> str:
        found = variable.get()
        variable.set("changed")
        return found

    variable.set("set")
    sandbox = Sandbox(tools={"sync": lambda: variable.get(), "coroutine": read})
    variable.set("later")
    with sandbox:
        for _ in range(2):
            results, _ = calls(sandbox, ("sync", {}), ("coroutine", {}))
            assert results == [{"value": "set"}] * 2


def test_the_thread_starts_with_the_sandbox_and_ends_with_it(fake: object) -> None:
    sandbox = Sandbox(tools=[add])
    assert threads() == 0
    sandbox.open()
    assert threads() == 1
    calls(sandbox, ("add", {"a": 1}))
    calls(sandbox, ("add", {"a": 1}))
    assert threads() == 2
    sandbox.close()
    until(lambda: threads() == 0)
    other = Sandbox(tools=[add]).open()
    assert threads() == 1
    sandcell.shutdown()
    until(lambda: threads() == 0)
    del other


def test_a_forgotten_sandbox_is_collected_with_its_functions(fake: object) -> None:
    class Owner:
        def __init__(self) -> None:
            self.sandbox = Sandbox(tools=[self.method]).open()

        def method(self) -> int:
            return 5

    owner = Owner()
    assert calls(owner.sandbox, ("method", {}))[0] == [{"value": 5}]
    forgotten = weakref.ref(owner), weakref.ref(owner.sandbox)
    del owner

    def collected() -> bool:
        gc.collect()
        return forgotten[0]() is None and forgotten[1]() is None

    until(collected)
    until(lambda: threads() == 0)


def test_two_users_at_once_start_one_thread(fake: object) -> None:
    sandbox = Sandbox(tools=[add])
    openers = [threading.Thread(target=sandbox.open) for _ in range(8)]
    for opener in openers:
        opener.start()
    for opener in openers:
        opener.join(30)
    assert threads() == 1
    sandbox.close()


def test_an_older_server_is_named(fake: Callable[[str], None]) -> None:
    fake("""
import json, sys
for line in sys.stdin:
    message = 'there is no tool "create_sandbox_with_functions"; the tools are execute_code'
    error = {"code": -32602, "message": message}
    print(json.dumps({"jsonrpc": "2.0", "id": json.loads(line)["id"], "error": error}), flush=True)
""")
    with pytest.raises(sandcell.BackendUnavailableError, match="older than this package") as caught:
        Sandbox(tools=[add]).open()
    assert caught.value.remedy


def test_a_loop_that_is_closed_is_an_error_inside(fake: object) -> None:
    sandbox = AsyncSandbox(tools=[add_async])
    asyncio.run(sandbox.open())

    async def main() -> Any:
        run = await sandbox.run(json.dumps({"calls": [("add_async", {"a": 1})]}))
        await sandbox.close()
        return json.loads(run.stdout)

    assert asyncio.run(main()) == [{"error": "RuntimeError: the event loop that made the sandbox is closed"}]


BEGIN = """
import json, os, signal, sys, threading, time, sandcell
signal.signal(signal.SIGINT, signal.default_int_handler)
begun = threading.Event()
def add(a, b=2):
    return a + b
def hang():
    begun.set()
    time.sleep(600)
def call(name, **arguments):
    return sandbox.run(json.dumps({"calls": [(name, arguments)]}), timeout=700).stdout
def call_quietly(name):
    # Python can abort at its end if a daemon thread prints a traceback then ("could not acquire lock for stderr").
    try:
        call(name)
    except sandcell.SandcellError:
        pass
sandbox = sandcell.Sandbox(tools=[add, hang]).open()
assert json.loads(call("add", a=1)) == [{"value": 3}]
"""


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("", 0),
        ("raise ValueError", 1),
        ("del sandbox", 0),
        ("threading.Thread(target=call_quietly, args=['hang'], daemon=True).start(); begun.wait()", 0),
        ("sandcell.shutdown()", 0),
        ("sandbox.keep = sys.modules['sandcell'].keep = sandbox", 0),
    ],
)
def test_python_ends_while_the_thread_waits(fake: object, end: str, status: int) -> None:
    with program(BEGIN + end) as child:
        _, errors = child.communicate(timeout=60)
    assert child.returncode == status, errors
    assert "sandcell/_function" not in errors


def test_ctrl_c_interrupts_a_run_whose_function_runs(fake: object) -> None:
    code = """
def interrupt():
    begun.wait()
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
    call("hang")
except KeyboardInterrupt:
    print("interrupted")
"""
    with program(BEGIN + code) as child:
        output, errors = child.communicate(timeout=60)
    assert (child.returncode, output) == (0, "interrupted\n"), errors


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_leaves_the_thread_to_its_parent(fake: object) -> None:
    code = """
child = os.fork()
if child == 0:
    try:
        sandbox.open()
    except sandcell.SessionLostError:
        pass
    else:
        os._exit(2)
    assert threading.active_count() == 1
    del sandbox
    sandbox = sandcell.Sandbox(tools=[add]).open()
    assert json.loads(call("add", a=2)) == [{"value": 4}]
    sandbox.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert json.loads(call("add", a=3)) == [{"value": 5}]
print("fine")
"""
    with program(BEGIN + code) as child:
        output, errors = child.communicate(timeout=60)
    assert output == "fine\n", errors
