"""What the tests share: a data folder that is removed afterwards, and programs in processes of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import sandcell
from sandcell import _stdio

#: The folder of the package that is tested, for programs that use it, too.
SOURCE = str(Path(sandcell.__file__).resolve().parent.parent)


def pytest_configure() -> None:
    try:
        _stdio.find_program()
    except sandcell.SandcellError as error:
        pytest.exit(f"the tests need the program: {error}", returncode=2)


@pytest.fixture(scope="session", autouse=True)
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps the history of the tests out of the user's."""
    os.environ["SANDCELL_DATA_DIR"] = str(tmp_path_factory.mktemp("data"))
    yield
    sandcell.shutdown()


@pytest.fixture
def sandbox() -> Iterator[sandcell.Sandbox]:
    with sandcell.Sandbox() as sandbox:
        yield sandbox


def until(holds: Callable[[], object], seconds: float = 20.0, pause: float = 0.01) -> None:
    """Waits until something holds. Looks again after each pause, in seconds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(pause)


@contextmanager
def program(code: str) -> Iterator[subprocess.Popen[str]]:
    """Runs a Python program that uses the package; kills it in the end."""
    path = os.pathsep.join(filter(None, [SOURCE, os.environ.get("PYTHONPATH")]))
    pipe = subprocess.PIPE
    words = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment) as child:
        try:
            yield child
        finally:
            child.kill()


def descendants(pid: int) -> set[tuple[int, str]]:
    """Returns the processes below a process, each with its start time: a number may be given again."""
    parents: dict[int, tuple[int, str]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry)] = (int(fields[1]), fields[19])
    found = {pid}
    while True:
        more = {child for child, (parent, _) in parents.items() if parent in found} - found
        if not more:
            break
        found |= more
    return {(child, parents[child][1]) for child in found - {pid}}


def alive(processes: set[tuple[int, str]]) -> set[int]:
    """Returns those that still run."""
    left = set()
    for pid, start in processes:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[19] == start and fields[0] not in "ZX":
            left.add(pid)
    return left


def blocks_of_guide(name: str) -> list[str]:
    """Returns the Python blocks of ``docs/guides/NAME.md``, in their order."""
    guide = Path(__file__).resolve().parents[2] / "docs" / "guides" / f"{name}.md"
    return re.findall(r"^```python\n(.*?)^```", guide.read_text("utf-8"), re.DOTALL | re.MULTILINE)
