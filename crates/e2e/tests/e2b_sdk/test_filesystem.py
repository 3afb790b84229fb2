"""Files and folders."""

import inspect
import io
import time

import httpx
import pytest
from e2b import FileType, InvalidArgumentException, NotFoundException, SandboxException


def test_text_and_bytes_are_written_and_read(sandbox):
    written = sandbox.files.write("a/b/text.txt", "héllo\n")
    assert (written.name, written.path) == ("text.txt", "/home/user/a/b/text.txt")
    assert sandbox.files.read("a/b/text.txt") == "héllo\n"
    sandbox.files.write("/tmp/data.bin", bytes(range(256)))
    assert bytes(sandbox.files.read("/tmp/data.bin", format="bytes")) == bytes(range(256))
    sandbox.files.write("stream.bin", io.BytesIO(b"x" * 3_000_000))
    streamed = b"".join(sandbox.files.read("stream.bin", format="stream"))
    assert streamed == b"x" * 3_000_000
    sandbox.files.write("empty", "")
    assert sandbox.files.read("empty") == ""


def test_metadata_of_files_follow_the_calls(fresh):
    files = fresh.files
    if "metadata" not in inspect.signature(files.write).parameters:
        return  # An SDK without them.
    given = {"Author": "ann", "note": "a b"}
    kept = {"author": "ann", "note": "a b"}
    assert files.write("box/m.txt", "1", metadata=given).metadata == kept
    assert files.write("box/plain.txt", "1").metadata is None
    assert files.get_info("box/m.txt").metadata == kept
    listed = {entry.name: entry.metadata for entry in files.list("box")}
    assert listed == {"m.txt": kept, "plain.txt": None}
    assert files.rename("box/m.txt", "box/n.txt").metadata == kept
    files.rename("box", "chest")
    assert files.get_info("chest/n.txt").metadata == kept
    fresh.commands.run("echo 2 > chest/n.txt")
    assert files.get_info("chest/n.txt").metadata == kept
    if hasattr(fresh, "fork"):
        fork = fresh.fork()[0]
        assert fork.files.get_info("chest/n.txt").metadata == kept
        fork.kill()
    assert files.write("chest/n.txt", "3").metadata is None
    assert files.get_info("chest/n.txt").metadata is None
    written = files.write_files([{"path": f"two/{i}", "data": "x"} for i in range(2)], metadata=given)
    assert [info.metadata for info in written] == [kept, kept]
    files.remove("two")
    fresh.commands.run("mkdir two && touch two/0")
    assert files.get_info("two/0").metadata is None


def test_changes_come_with_the_changed_entry(fresh):
    files = fresh.files
    if "include_entry" not in inspect.signature(files.watch_dir).parameters:
        return  # An SDK without them.
    files.make_dir("watched")
    watch = files.watch_dir("watched", recursive=True, include_entry=True, allow_network_mounts=True)
    files.write("watched/a.txt", "12345")
    fresh.commands.run("mkdir watched/sub; rm watched/a.txt")
    events = []
    for _ in range(200):
        events += watch.get_new_events()
        if any(event.name == "sub" for event in events) and any(event.type.value == "remove" for event in events):
            break
        time.sleep(0.05)
    of = {(event.name, event.type.value): event.entry for event in events}
    assert of["sub", "create"].path == "/home/user/watched/sub"
    assert of["sub", "create"].type == FileType.DIR
    assert of["a.txt", "remove"] is None
    watch.stop()


def test_several_files_are_written_at_once(sandbox):
    files = [{"path": f"many/{i}.txt", "data": str(i)} for i in range(5)]
    assert [info.path for info in sandbox.files.write_files(files)] == [f"/home/user/many/{i}.txt" for i in range(5)]
    assert [sandbox.files.read(f"many/{i}.txt") for i in range(5)] == list("01234")


def test_an_entry_is_described(sandbox):
    sandbox.files.write("described.txt", "12345")
    sandbox.commands.run("chmod 640 described.txt; ln -sf described.txt link; mkdir -p sub")
    info = sandbox.files.get_info("described.txt")
    assert (info.name, info.type, info.size, info.permissions) == ("described.txt", FileType.FILE, 5, "-rw-r-----")
    assert (info.owner, info.group, info.path) == ("user", "user", "/home/user/described.txt")
    assert abs(info.modified_time.timestamp() - time.time()) < 60
    link = sandbox.files.get_info("link")
    assert link.symlink_target in ("described.txt", "/home/user/described.txt")
    assert sandbox.files.get_info("sub").type == FileType.DIR


def test_a_folder_is_listed_to_a_depth(sandbox):
    for path in ["tree/a/b/c.txt", "tree/d.txt"]:
        sandbox.files.write(path, "x")
    shallow = {entry.path for entry in sandbox.files.list("tree")}
    assert shallow == {"/home/user/tree/a", "/home/user/tree/d.txt"}
    deeper = {entry.path for entry in sandbox.files.list("tree", depth=2)}
    assert deeper == shallow | {"/home/user/tree/a/b"}
    whole = {entry.path for entry in sandbox.files.list("tree", depth=10)}
    assert whole == deeper | {"/home/user/tree/a/b/c.txt"}


def test_folders_are_made_renamed_and_removed(sandbox):
    assert sandbox.files.make_dir("made/deep") is True
    assert sandbox.files.make_dir("made/deep") is False
    sandbox.files.write("made/deep/file", "x")
    moved = sandbox.files.rename("made", "elsewhere/made")
    assert moved.path == "/home/user/elsewhere/made"
    assert sandbox.files.read("elsewhere/made/deep/file") == "x"
    assert not sandbox.files.exists("made")
    sandbox.files.rename("elsewhere/made", "/tmp/made")
    assert sandbox.files.read("/tmp/made/deep/file") == "x"
    sandbox.files.remove("/tmp/made")
    assert not sandbox.files.exists("/tmp/made")


def test_missing_and_wrong_paths_are_named(sandbox):
    with pytest.raises(NotFoundException):
        sandbox.files.read("no-such-file")
    with pytest.raises(NotFoundException):
        sandbox.files.list("no-such-folder")
    with pytest.raises(NotFoundException):
        sandbox.files.get_info("no-such-file")
    with pytest.raises(NotFoundException):
        sandbox.files.rename("no-such-file", "x")
    sandbox.files.write("plain", "x")
    with pytest.raises(InvalidArgumentException):
        sandbox.files.list("plain")
    with pytest.raises(InvalidArgumentException):
        sandbox.files.read("/home/user")
    with pytest.raises(SandboxException):
        sandbox.files.write("/usr/x", "x")
    for kept in ["/", "/usr/bin", "/proc/self"]:
        with pytest.raises(SandboxException):
            sandbox.files.remove(kept)
    assert sandbox.commands.run("ls /usr/bin/env").stdout == "/usr/bin/env\n"


def test_paths_cannot_leave_the_sandbox(sandbox):
    sandbox.files.write("../../../../tmp/above", "inside")
    assert sandbox.files.read("/tmp/above") == "inside"
    assert sandbox.commands.run("cat /tmp/above").stdout == "inside"


def test_large_files_go_through_whole(sandbox):
    data = bytes(range(256)) * (120_000)
    sandbox.files.write("large.bin", data)
    assert bytes(sandbox.files.read("large.bin", format="bytes")) == data
    assert sandbox.files.get_info("large.bin").size == len(data)


def test_signed_addresses_work_without_a_token_until_they_expire(sandbox):
    sandbox.files.write("signed.txt", "signed")
    address = sandbox.download_url("signed.txt", use_signature_expiration=60)
    import os
    from urllib.parse import urlsplit

    def fetch(address, method="GET", **more):
        parts = urlsplit(address)
        url = f"{os.environ['E2B_SANDBOX_URL']}{parts.path}?{parts.query}"
        # The signature alone names the sandbox.
        return httpx.request(method, url, **more)

    assert fetch(address).text == "signed"
    assert fetch(address.replace("signed.txt", "other.txt")).status_code in (401, 404)
    assert fetch(address, "POST", files={"file": b"x"}).status_code in (401, 404)
    upload = sandbox.upload_url("uploaded.txt", use_signature_expiration=60)
    assert fetch(upload, "POST", files={"file": b"new"}).status_code == 200
    assert sandbox.files.read("uploaded.txt") == "new"
    short = sandbox.download_url("signed.txt", use_signature_expiration=1)
    time.sleep(2.1)
    assert fetch(short).status_code in (401, 404)


def test_a_deep_list_follows_each_folder_with_its_entries(fresh):
    for path in ("deep/b/y/1", "deep/a", "deep/c", "deep/b/x"):
        fresh.files.write(path, "")
    paths = [entry.path.removeprefix("/home/user/deep/") for entry in fresh.files.list("deep", depth=3)]
    assert paths == ["a", "b", "b/x", "b/y", "b/y/1", "c"]


def test_an_expired_address_is_refused_as_such(fresh):
    fresh.files.write("a", "1")
    answer = httpx.get(fresh.download_url("a", use_signature_expiration=-100))
    assert (answer.status_code, answer.json()) == (401, {"code": 401, "message": "signature is already expired"})
    wrong = fresh.download_url("a", use_signature_expiration=100).replace("signature=v1_", "signature=v1_x")
    assert httpx.get(wrong).status_code == 401
