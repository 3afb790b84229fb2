"""Measures the goals of the package on this machine and prints them as a table: `SANDCELL_BIN=… python benches/goals.py`.

Times are medians, in milliseconds. Nothing is asserted: the figures depend on the machine, its load and the build of the
program. The raw MCP call is the same `tools/call` on the same connection, without the package's work around it.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import sandcell
from sandcell import _stdio

MEGABYTES = 100


def milliseconds(do: Callable[[], object]) -> float:
    began = time.perf_counter()
    do()
    return (time.perf_counter() - began) * 1000


def in_new_process(code: str, repeats: int) -> float:
    """Runs code that prints a time in fresh processes, and returns the median. The package is compiled, as pip leaves it."""
    path = os.pathsep.join([str(Path(sandcell.__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    words = [sys.executable, "-c", f"import time; began = time.perf_counter()\n{code}"]
    with tempfile.TemporaryDirectory() as compiled:
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONPYCACHEPREFIX": compiled}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)

        def run() -> float:
            ended = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
            return float(ended.stdout.split()[-1])

        run()
        return statistics.median(run() for _ in range(repeats))


def later_runs(repeats: int = 200) -> tuple[float, float]:
    """Returns the medians of a run by the package and of the raw call; they take turns."""
    arguments = {"code": "print(1)", "language": "python", "timeout_s": 30.0, "wait_s": 50.0}
    channel = _stdio.local_server()
    raw = {"name": "create_run_close", "arguments": arguments}
    ours, theirs = [], []
    for _ in range(repeats):
        ours.append(milliseconds(lambda: sandcell.run("print(1)")))
        theirs.append(milliseconds(lambda: channel.start("tools/call", raw).wait(60)))
    return statistics.median(ours), statistics.median(theirs)


async def many(count: int) -> None:
    async def one(number: int) -> None:
        async with sandcell.AsyncSandbox() as sandbox:
            assert (await sandbox.run(f"{number} + 1")).result == str(number + 1)

    await asyncio.gather(*(one(number) for number in range(count)))


def rate(took_ms: float) -> str:
    return f"{MEGABYTES / took_ms * 1000:.0f} MB/s"


def show(what: str, measured: str, goal: str) -> None:
    print(f"| {what:<52} | {measured:<36} | {goal:<18} |", flush=True)


def transfers() -> None:
    with sandcell.Sandbox(disk_mb=600, memory_mb=1024) as sandbox, tempfile.TemporaryDirectory() as folder:
        sandbox.run("1")
        local = Path(folder, "data")
        with local.open("wb") as file:
            for _ in range(MEGABYTES):
                file.write(os.urandom(1_000_000))
        up = milliseconds(lambda: sandbox.files.upload(local, "up"))
        down = milliseconds(lambda: sandbox.files.download("up", Path(folder, "back")))
        assert Path(folder, "back").read_bytes()[-9:] == local.read_bytes()[-9:]
    show("100 MB file up (files.upload)", rate(up), "300 MB/s")
    show("100 MB file down (files.download)", rate(down), "300 MB/s")


def streaming_memory() -> float:
    """Returns by how much memory grows while a file moves, in a fresh process."""
    code = (
        "import sandcell, tempfile\n"
        "peak = lambda: int(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0]) / 1024\n"
        "with sandcell.Sandbox(disk_mb=600) as sandbox, tempfile.TemporaryDirectory() as folder:\n"
        f"    sandbox.run(\"open('d', 'wb').truncate({MEGABYTES}000000)\").check(); before = peak()\n"
        "    sandbox.files.download('d', folder + '/d'); sandbox.files.upload(folder + '/d', 'e')\n"
        "    print(peak() - before)"
    )
    return in_new_process(code, 1)


def main() -> None:
    print(f"{_stdio.find_program()}, Python {sys.version.split()[0]}, {os.cpu_count()} processors")
    show("what", "measured", "goal")
    show("-" * 52, "-" * 36, "-" * 18)
    done = "print((time.perf_counter() - began) * 1000)"
    show("import sandcell", f"{in_new_process(f'import sandcell; {done}', 21):.1f} ms", "30 ms")
    first = in_new_process(f"import sandcell; sandcell.run('print(1)'); {done}", 11)
    show("first sandcell.run of a process, with the import", f"{first:.1f} ms", "60 ms")
    ours, theirs = later_runs()
    show("later sandcell.run, above the raw call", f"{ours - theirs:.2f} ms ({ours:.2f} - {theirs:.2f})", "0.3 ms")
    together = milliseconds(lambda: asyncio.run(many(64)))
    show("64 sandboxes from 64 tasks, made, used and closed", f"{together:.0f} ms", "all work")
    transfers()
    show("growth of memory while 100 MB move", f"{streaming_memory():.0f} MB", "below 100 MB")


if __name__ == "__main__":
    main()
