"""Arguments of the wrong type or value, and the two interfaces beside each other."""

from __future__ import annotations

import asyncio
import inspect
import math
from typing import Any

import pytest

import sandcell
from sandcell import AsyncSandbox, Sandbox


@pytest.mark.parametrize(
    "arguments",
    [
        {"packages": "pandas"},
        {"packages": [1]},
        {"packages": {"a": "b"}},
        {"packages": 5},
        {"env": {"A": 1}},
        {"env": ["A"]},
        {"memory_mb": 1.5},
        {"memory_mb": True},
        {"memory_mb": -1},
        {"memory_mb": 0},
        {"memory_mb": 10**30},
        {"cpus": "1"},
        {"cpus": math.nan},
        {"cpus": 0},
        {"disk_mb": []},
        {"network": "example.com"},
        {"lifetime": -1},
        {"timeout": 0},
        {"timeout": math.inf},
        {"timeout": None},
        {"timeout": 10**400},
        {"language": None},
        {"image": 5},
        {"label": b"x"},
        {"token": "only"},
        {"saved": 5},
        {"saved": ""},
        {"only_files": True},
        {"url": "ftp://x"},
        {"url": "box:8123"},
        {"url": "http://h:port"},
        {"url": "https://h/mcp?x=1"},
        {"url": "http://h", "token": "a\r\nX: y"},
        {"url": "http://h", "token": ""},
    ],
    ids=repr,
)
def test_a_sandbox_with_bad_arguments_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(sandcell.InvalidArgumentError) as caught:
        Sandbox(**arguments).open()
    assert caught.value.remedy
    with pytest.raises(sandcell.InvalidArgumentError):
        asyncio.run(AsyncSandbox(**arguments).open())


@pytest.mark.parametrize(
    "arguments",
    [
        {"code": 5},
        {"code": b"1"},
        {"code": None},
        {"code": "print('\ud800')"},
        {"code": "1", "language": 5},
        {"code": "1", "stdin": b"x"},
        {"code": "1", "stdin": "\udfff"},
        {"code": "1", "timeout": "5"},
        {"code": "1", "timeout": -1},
        {"code": "1", "timeout": True},
        {"code": "1", "on_stdout": "print"},
        {"code": "1", "on_stderr": 5},
        {"code": "1", "max_output": 0},
        {"code": "1", "max_output": 1.5},
    ],
    ids=repr,
)
def test_a_run_with_bad_arguments_is_refused(sandbox: Sandbox, arguments: dict[str, Any]) -> None:
    with pytest.raises(sandcell.SandcellError) as caught:
        sandbox.run(**arguments)
    assert caught.value.code in ("invalid_argument", "language_unavailable")
    assert caught.value.remedy
    with pytest.raises(sandcell.SandcellError):
        sandcell.run(**arguments)


@pytest.mark.parametrize("files", [{"a": b"x"}, {5: "x"}, ["a"], {"a": "\ud800"}, {"": "x"}])
def test_bad_files_of_a_throwaway_run_are_refused(files: Any) -> None:
    with pytest.raises(sandcell.InvalidArgumentError):
        sandcell.run("1", files=files)


@pytest.mark.parametrize("path", ["", "a\0b", 5, None, b"x", "\ud800"])
def test_bad_paths_are_refused(sandbox: Sandbox, path: Any) -> None:
    for use in (
        lambda: sandbox.files.write(path, "x"),
        lambda: sandbox.files.read(path),
        lambda: sandbox.files.list(path),
        lambda: sandbox.files.exists(path),
        lambda: sandbox.files.remove(path),
    ):
        with pytest.raises(sandcell.InvalidArgumentError):
            use()


@pytest.mark.parametrize("data", [5, None, ["x"], "\ud800"])
def test_bad_data_is_refused(sandbox: Sandbox, data: Any) -> None:
    with pytest.raises(sandcell.InvalidArgumentError):
        sandbox.files.write("x", data)


def test_code_that_is_too_long_is_refused_at_once(sandbox: Sandbox) -> None:
    for size in (2 << 20, 40 << 20):
        with pytest.raises(sandcell.SandcellError) as caught:
            sandbox.run("#" * size)
        assert caught.value.code in ("limit_reached", "invalid_argument")
        assert caught.value.remedy


def test_both_interfaces_have_the_same_methods_and_arguments() -> None:
    def shape(kind: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(member).parameters)
            for name, member in vars(kind).items()
            if inspect.isfunction(member) and (not name.startswith("_") or name == "__init__")
        }

    assert shape(Sandbox) == shape(AsyncSandbox)
    assert shape(sandcell.Files) == shape(sandcell.AsyncFiles)
    assert list(inspect.signature(sandcell.run).parameters) == list(inspect.signature(sandcell.run_async).parameters)


def test_every_code_of_the_program_has_a_class() -> None:
    codes = (
        "invalid_argument not_found expired unauthorized denied_by_policy code_rejected limit_reached backend_unavailable "
        "isolation_unavailable language_unavailable image_unavailable code_failed crashed timeout out_of_memory "
        "process_limit disk_full output_limit cancelled session_lost checkpoint_unavailable package_not_allowed "
        "package_failed network_denied tool_denied tool_failed tool_unavailable busy internal"
    )
    from sandcell._errors import ERRORS, error_for

    assert set(ERRORS) == set(codes.split())
    assert all(kind.__name__ in sandcell.__all__ for kind in ERRORS.values())
    assert error_for("new_code", "m", "r").code == "new_code"
