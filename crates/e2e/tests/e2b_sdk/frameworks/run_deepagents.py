"""Deep Agents' E2B backend (langchain-e2b), unchanged, with the server in E2B's variables. Prints a line for each check. No model is needed."""

import asyncio
import os
import sys
from e2b import AsyncSandbox, Sandbox
from langchain_e2b import AsyncE2BSandbox, E2BSandbox

failures = 0
HOME = "/home/user/work"


def check(name, got, want=True):
    global failures
    if got == want:
        print(f"ok {name}")
    else:
        failures += 1
        print(f"WRONG {name}: got {got!r}, want {want!r}")


def names(entries):
    return sorted(entry["path"].removeprefix(HOME).lstrip("/") for entry in entries or [])


def synchronous():
    sandbox = Sandbox.create(timeout=240)
    try:
        backend = E2BSandbox(sandbox=sandbox)
        check("id", backend.id, sandbox.sandbox_id)

        answer = backend.execute("echo out; echo err >&2; exit 3")
        check("execute: output and exit code", (answer.output.split(), answer.exit_code), (["out", "err"], 3))
        check("execute: working folder", backend.execute("pwd").output.strip(), "/home/user")
        check("execute: pipes and quotes", backend.execute("printf 'a b\\nc\\n' | wc -l").output.strip(), "2")
        check("execute: timeout", backend.execute("sleep 30", timeout=1).exit_code, 124)
        check("execute: after a timeout", backend.execute("echo again").output.strip(), "again")

        check("write", backend.write(f"{HOME}/a.txt", "one\ntwo\nthree\n").error, None)
        check("write: no overwriting", backend.write(f"{HOME}/a.txt", "x").error is not None)
        check("read", backend.read(f"{HOME}/a.txt").file_data["content"].rstrip("\n"), "one\ntwo\nthree")
        check("read: some lines", backend.read(f"{HOME}/a.txt", offset=1, limit=1).file_data["content"].rstrip("\n"), "two")
        check("read: missing file", backend.read(f"{HOME}/none.txt").error is not None)
        check("edit", (backend.edit(f"{HOME}/a.txt", "two", "zwei \u2028 \U0001f600").occurrences), 1)
        check("edit: text that is not there", backend.edit(f"{HOME}/a.txt", "absent", "x").error is not None)
        check("edit: result", backend.execute(f"sed -n 2p {HOME}/a.txt").output.rstrip("\n"), "zwei \u2028 \U0001f600")

        large = "0123456789abcdef" * 8192
        check("write: 128 KiB", backend.write(f"{HOME}/large.txt", large + "end").error, None)
        check("edit: 128 KiB", backend.edit(f"{HOME}/large.txt", large, "short ").occurrences, 1)
        check("edit: 128 KiB, result", backend.execute(f"cat {HOME}/large.txt").output, "short end")

        backend.execute(f"mkdir -p {HOME}/sub && printf 'needle\\n' > {HOME}/sub/b.py && printf 'a needle: b\\n' > {HOME}/c.md")
        check("ls", names(backend.ls(HOME).entries), ["a.txt", "c.md", "large.txt", "sub"])
        check("ls: missing folder", bool(backend.ls(f"{HOME}/none").entries), False)
        found = backend.grep("needle", path=HOME).matches
        check("grep", sorted((match["path"].rsplit("/", 1)[1], match["line"], match["text"]) for match in found), [("b.py", 1, "needle"), ("c.md", 1, "a needle: b")])
        check("grep: some files", len(backend.grep("needle", path=HOME, glob="*.py").matches), 1)
        check("grep: nothing", backend.grep("[absent", path=HOME).matches, [])
        check("glob", [path.rsplit("/", 1)[-1] for path in names(backend.glob("**/*.py", path=HOME).matches)], ["b.py"])

        data = bytes(range(256)) * 64
        uploaded = backend.upload_files([(f"{HOME}/deep/er/raw.bin", data), (f"{HOME}/empty", b""), ("relative", b"x")])
        check("upload", [answer.error for answer in uploaded], [None, None, "invalid_path"])
        downloaded = backend.download_files([f"{HOME}/deep/er/raw.bin", f"{HOME}/empty", f"{HOME}/none", HOME])
        check("download", [answer.content for answer in downloaded[:2]], [data, b""])
        check("download: errors", [answer.error for answer in downloaded[2:]], ["file_not_found", "is_directory"])

        again = E2BSandbox(sandbox=Sandbox.connect(backend.id))
        check("connect", again.execute("cat work/c.md").output, "a needle: b\n")
    finally:
        sandbox.kill()
    check("execute: sandbox is gone", backend.execute("echo x").exit_code != 0)


async def asynchronous():
    sandbox = await AsyncSandbox.create(timeout=240)
    try:
        backend = AsyncE2BSandbox(sandbox=sandbox)
        answers = await asyncio.gather(*(backend.aexecute(f"sleep 0.2; echo {number}") for number in range(4)))
        check("async: four at once", [answer.output.strip() for answer in answers], ["0", "1", "2", "3"])
        check("async: write", (await backend.awrite(f"{HOME}/a.txt", "one")).error, None)
        check("async: edit", (await backend.aedit(f"{HOME}/a.txt", "one", "two")).occurrences, 1)
        check("async: read", (await backend.aread(f"{HOME}/a.txt")).file_data["content"].rstrip("\n"), "two")
        check("async: ls", names((await backend.als(HOME)).entries), ["a.txt"])
        check("async: grep", len((await backend.agrep("two", path=HOME)).matches), 1)
    finally:
        await sandbox.kill()


synchronous()
asyncio.run(asynchronous())
# Not `sys.exit`: at the interpreter's end, a native library of the client sometimes aborts.
sys.stdout.flush()
os._exit(1 if failures else 0)
