"""The examples, run as a reader would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SOURCE

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def example(name: str, *arguments: str) -> str:
    path = os.pathsep.join(filter(None, [SOURCE, os.environ.get("PYTHONPATH")]))
    words = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(words, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_first_steps() -> None:
    assert example("first.py").splitlines() == [
        "hello from inside",
        "sum: 42",
        "failed: IndexError - correct the code and run it again",
        "timeout: timeout",
        "still there: 2",
    ]


def test_many_sandboxes() -> None:
    assert example("many.py").splitlines() == [f"thinking {number**2}" for number in range(20)]


@pytest.mark.skipif("SANDCELL_TEST_DATA_PYTHON" not in os.environ, reason="needs SANDCELL_TEST_DATA_PYTHON: data libraries")
def test_a_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The sandboxes use an interpreter that has the libraries, so nothing is installed.
    monkeypatch.setenv("SANDCELL_PYTHON", os.environ["SANDCELL_TEST_DATA_PYTHON"])
    assert "mean" in example("plot.py", str(tmp_path / "plot.png"))
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
