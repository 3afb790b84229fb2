"""Files and folders between this machine and a sandbox, and hostile folders."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

import sandcell
from sandcell import AsyncSandbox, Sandbox, _transfer


def tree(folder: Path) -> dict[str, tuple[bytes, bool]]:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path.relative_to(folder)): (path.read_bytes(), os.access(path, os.X_OK)) for path in files}


def test_a_folder_goes_there_and_comes_back_with_its_rights(sandbox: Sandbox, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep/é er").mkdir(parents=True)
    (source / "empty").mkdir()
    (source / "deep/é er/data.bin").write_bytes(os.urandom(3 << 20))
    (source / "tool.sh").write_text("#!/bin/sh\necho it works\n")
    (source / "tool.sh").chmod(0o755)
    (source / "link").symlink_to("tool.sh")
    assert sandbox.files.upload(source, "in it") == 3
    assert sandbox.run("'in it/link'", language="bash").stdout == "it works\n"
    assert sandbox.files.download("in it", tmp_path / "back") == 2
    assert tree(tmp_path / "back") == tree(source)
    assert (tmp_path / "back/empty").is_dir()
    assert sandbox.run("ls -A /tmp", language="bash").stdout == ""


def test_a_file_keeps_its_bytes_and_rights(sandbox: Sandbox, tmp_path: Path) -> None:
    data = os.urandom((2 << 20) + 1)
    (tmp_path / "tool").write_bytes(data)
    (tmp_path / "tool").chmod(0o755)
    assert sandbox.files.upload(tmp_path / "tool", "a/tool") == 1
    assert sandbox.files.download("a/tool", tmp_path / "b/tool") == 1
    assert tree(tmp_path / "b") == {"tool": (data, True)}
    sandbox.files.write("empty", "")
    sandbox.files.download("empty", tmp_path / "b/empty")
    assert tree(tmp_path / "b")["empty"] == (b"", False)


def test_more_entries_than_a_listing_shows_come_back(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.run("import os; os.mkdir('many')\nfor i in range(1000): open(f'many/{i}', 'w').write(str(i))").check()
    assert sandbox.files.download("many", tmp_path) == 1000
    assert tree(tmp_path)["999"] == (b"999", False)


async def fetched_async(tmp_path: Path) -> int:
    async with AsyncSandbox() as sandbox:
        await sandbox.files.upload(tmp_path, "d")
        return await sandbox.files.download("d", tmp_path / "back")


def test_the_same_by_asyncio(tmp_path: Path) -> None:
    import asyncio

    (tmp_path / "file").write_text("1")
    assert asyncio.run(fetched_async(tmp_path)) == 1
    assert (tmp_path / "back/file").read_text() == "1"


def test_links_that_lead_out_are_not_sent(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    folder = tmp_path / "folder"
    folder.mkdir()
    for target in ("/etc/passwd", "../secret", str(tmp_path)):
        (folder / "link").symlink_to(target)
        with pytest.raises(sandcell.InvalidArgumentError, match="leads out"):
            sandbox.files.upload(folder, "d")
        (folder / "link").unlink()
    os.mkfifo(folder / "pipe")
    for path in (folder, folder / "pipe"):
        with pytest.raises(sandcell.InvalidArgumentError, match="pipe"):
            sandbox.files.upload(path, "d")


def test_links_from_inside_are_left_out_and_links_in_the_way_are_replaced(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("mine")
    target = tmp_path / "target"
    target.mkdir()
    (target / "file").symlink_to(tmp_path / "outside")
    sandbox.run(
        "import os; os.mkdir('d'); os.symlink('/etc', 'd/etc'); os.mkfifo('d/pipe'); open('d/file', 'w').write('theirs')\n"
        "os.link('d/file', 'd/second')"
    ).check()
    assert sandbox.files.download("d", target) == 2
    assert sorted(os.listdir(target)) == ["file", "second"]
    assert tree(target) == {"file": (b"theirs", False), "second": (b"theirs", False)}
    assert (tmp_path / "outside").read_text() == "mine"


def entry(name: str, data: bytes = b"x", kind: bytes = tarfile.REGTYPE, link: str = "") -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    info.size = len(data) if kind == tarfile.REGTYPE else 0
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.addfile(info, io.BytesIO(data))
    return packed.getvalue()[: 512 + (512 if info.size else 0)]


@pytest.mark.parametrize("name", ["../out", "/tmp/sandcell-out", "a/../../out", "a/..", "./../out"])
def test_names_that_lead_out_are_refused(tmp_path: Path, name: str) -> None:
    target = tmp_path / "target"
    with pytest.raises(sandcell.DeniedByPolicyError, match="leads out"):
        _transfer.unpack(io.BytesIO(entry(name) + bytes(1024)), str(target), 1 << 20)
    assert os.listdir(tmp_path) == ["target"]
    assert os.listdir(target) == []
    assert not os.path.exists("/tmp/sandcell-out")


def test_a_link_of_an_archive_is_no_way_out(tmp_path: Path) -> None:
    target = tmp_path / "target"
    archive = entry("a", kind=tarfile.SYMTYPE, link="..") + entry("a/out") + bytes(1024)
    assert _transfer.unpack(io.BytesIO(archive), str(target), 1 << 20) == 1
    assert (target / "a/out").read_text() == "x"
    (target / "b").symlink_to(tmp_path)
    with pytest.raises(OSError, match=r"directory|symbolic"):
        _transfer.unpack(io.BytesIO(entry("b/out") + bytes(1024)), str(target), 1 << 20)
    assert os.listdir(tmp_path) == ["target"]


@pytest.mark.parametrize(
    "archive",
    [
        b"no archive" * 100,
        entry("self", kind=tarfile.LNKTYPE, link="self"),
        entry("gone", kind=tarfile.LNKTYPE, link="/etc/passwd"),
    ],
    ids=["junk", "a link to itself", "a link to nothing"],
)
def test_a_broken_archive_is_an_error_of_ours(tmp_path: Path, archive: bytes) -> None:
    with pytest.raises(sandcell.InvalidArgumentError, match="archive"):
        _transfer.unpack(io.BytesIO(archive + bytes(1024)), str(tmp_path / "target"), 1 << 20)
    assert tree(tmp_path) in ({}, {"target/self": (b"", False)})


def test_a_forged_header_does_not_take_memory(tmp_path: Path) -> None:
    info = tarfile.TarInfo("long")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1 << 30
    with pytest.raises(sandcell.InvalidArgumentError, match="1073741824"):
        _transfer.unpack(io.BytesIO(info.tobuf() + bytes(2048)), str(tmp_path), 1 << 20)


def test_bounds_hold(sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox.run("import os; os.mkdir('d')\nfor n in 'ab': open('d/' + n, 'wb').write(bytes(1000))").check()
    with pytest.raises(sandcell.OutputLimitError, match="1,999"):
        sandbox.files.download("d", tmp_path / "x", max_bytes=1999)
    assert sandbox.files.download("d", tmp_path / "x", max_bytes=2000) == 2
    with pytest.raises(sandcell.OutputLimitError, match="999"):
        sandbox.files.download("d/a", tmp_path / "y", max_bytes=999)
    monkeypatch.setattr(_transfer, "MAX_ENTRIES", 1)
    with pytest.raises(sandcell.OutputLimitError, match="entries"):
        sandbox.files.download("d", tmp_path / "x")
    with pytest.raises(sandcell.InvalidArgumentError, match="entries"):
        sandbox.files.upload(tmp_path / "x", "e")


def test_what_cannot_be_moved_is_named(sandbox: Sandbox, tmp_path: Path) -> None:
    with pytest.raises(sandcell.NotFoundError, match="missing"):
        sandbox.files.download("missing", tmp_path / "x")
    with pytest.raises(sandcell.NotFoundError, match="missing"):
        sandbox.files.upload(tmp_path / "missing", "x")
    with pytest.raises(sandcell.InvalidArgumentError):
        sandbox.files.upload(3, "x")  # type: ignore[arg-type]
    sandbox.files.write("file", "1")
    with pytest.raises(sandcell.InvalidArgumentError, match="folder"):
        sandbox.files.download("file", tmp_path)
    (tmp_path / "plain").write_text("1")
    with pytest.raises(sandcell.SandcellError, match="plain"):
        sandbox.files.download("file", tmp_path / "plain/x")
