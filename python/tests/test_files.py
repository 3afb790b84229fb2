"""Files of a sandbox."""

from __future__ import annotations

import os
from pathlib import PurePosixPath

import pytest

import sandcell
from sandcell import Sandbox


@pytest.mark.parametrize(
    "data", [b"", b"\x00\xff\r\n", "héllo\n".encode(), os.urandom((1 << 20) + 1), bytes(2 << 20)], ids=len
)
def test_bytes_come_back_as_they_went(sandbox: Sandbox, data: bytes) -> None:
    assert sandbox.files.write("a/b/data.bin", data) == len(data)
    assert sandbox.files.read("a/b/data.bin") == data


def test_text_is_utf8_and_can_be_appended(sandbox: Sandbox) -> None:
    sandbox.files.write("text", "é\r\n")
    sandbox.files.write(PurePosixPath("text"), "ü", append=True)
    assert sandbox.files.read_text("text") == "é\r\nü"
    assert sandbox.run("open('text', 'rb').read()").result == repr("é\r\nü".encode())


@pytest.mark.parametrize("name", ["with space", "quo'te", 'dou"ble', "new\nline", "-rf", "$HOME", "é", "*", "`id`"])
def test_any_name_can_be_written_listed_and_removed(sandbox: Sandbox, name: str) -> None:
    sandbox.files.write(f"d/{name}", "1")
    sandbox.files.write("d/other", "2")
    assert sorted(entry.name for entry in sandbox.files.list("d")) == sorted([name, "other"])
    assert sandbox.files.exists(f"d/{name}")
    sandbox.files.remove(f"d/{name}")
    assert not sandbox.files.exists(f"d/{name}")
    assert [entry.name for entry in sandbox.files.list("d")] == ["other"]


def test_what_is_there_is_told_from_what_is_not(sandbox: Sandbox) -> None:
    sandbox.run("import os; os.mkfifo('pipe'); os.mkdir('d'); os.symlink('d', 'link'); os.symlink('no', 'dangling')").check()
    sandbox.files.write("file", "1")
    there = {name: sandbox.files.exists(name) for name in ("pipe", "d", "link", "dangling", "file", "file/x", "no", "/etc")}
    assert there == {
        "pipe": True,
        "d": True,
        "link": True,
        "dangling": False,
        "file": True,
        "file/x": False,
        "no": False,
        "/etc": True,
    }
    sandbox.files.remove("dangling")
    sandbox.files.remove("d")
    assert sorted(entry.name for entry in sandbox.files.list()) == ["file", "link", "pipe"]


def test_removing_survives_what_code_did_to_the_shell(sandbox: Sandbox) -> None:
    sandbox.files.write("file", "1")
    sandbox.run("rm() { echo no; }; alias rm=false; cd /tmp", language="bash").check()
    sandbox.files.remove("file")
    assert not sandbox.files.exists("file")


def test_what_cannot_be_done_is_named(sandbox: Sandbox) -> None:
    with pytest.raises(sandcell.NotFoundError, match="missing"):
        sandbox.files.read("missing")
    with pytest.raises(sandcell.NotFoundError, match="missing"):
        sandbox.files.remove("missing")
    with pytest.raises(sandcell.NotFoundError, match="missing"):
        sandbox.files.list("missing")
    with pytest.raises(sandcell.InvalidArgumentError, match="folder"):
        sandbox.files.read("/home/user")
    with pytest.raises(sandcell.DeniedByPolicyError):
        sandbox.files.remove("/etc/passwd")
    sandbox.files.write("big", bytes(100))
    with pytest.raises(sandcell.OutputLimitError, match="100"):
        sandbox.files.read("big", max_bytes=99)


def test_a_disk_that_is_full_says_so() -> None:
    with Sandbox(disk_mb=2) as sandbox, pytest.raises(sandcell.DiskFullError):
        sandbox.files.write("big", bytes(8 << 20))


def test_a_large_folder_says_how_much_it_left_out(sandbox: Sandbox) -> None:
    sandbox.run("import os; os.mkdir('many')\nfor i in range(400): open(f'many/{i}', 'w')").check()
    found = sandbox.files.list("many")
    assert len(found) + found.more == 400
    assert found.more > 0
