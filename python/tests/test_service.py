"""Sandboxes of a service, over HTTP: the real one, and ones that misbehave."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Callable

import pytest
from conftest import program, until

import sandcell
from sandcell import AsyncSandbox, Sandbox, _http, _operations, _pool, _stdio


class Service:
    """A running `sandcell serve --http` with a token."""

    def __init__(self, folder: Path) -> None:
        environment = {**os.environ, "SANDCELL_DATA_DIR": str(folder)}
        environment.pop("SANDCELL_BIN", None)
        program = _stdio.find_program()
        created = subprocess.run(
            [program, "token", "create", "test"], env=environment, capture_output=True, text=True, check=True
        )
        self.token = created.stdout.strip()
        self.process = subprocess.Popen(
            [program, "serve", "--http", "127.0.0.1:0"], env=environment, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr
        for line in self.process.stderr:
            if "listening on" in line:
                self.url = line.split()[-1]
                break
        self.drain = threading.Thread(target=self.process.stderr.read, daemon=True)
        self.drain.start()

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        self.drain.join(5)
        assert self.process.stderr
        self.process.stderr.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service(tmp_path_factory.mktemp("service"))
    yield service
    service.end()


def test_a_sandbox_of_a_service_is_like_one_of_this_machine(service: Service) -> None:
    heard: list[str] = []
    with Sandbox(url=service.url, token=service.token) as sandbox:
        assert sandbox.run("x = 20").ok
        assert sandbox.run("print('é'); x + 1", on_stdout=heard.append).result == "21"
        assert heard == ["é\n"]
        data = bytes(range(256)) * 8192
        sandbox.files.write("data", data)
        assert sandbox.files.read("data") == data
        sandbox.files.remove("data")
        assert sandbox.run("1/0").cause is not None
        assert len(sandbox.history()) == 4
        with pytest.raises(sandcell.NotFoundError):
            sandbox.files.read("data")
    address = service.url.replace("/mcp", "")
    run = sandcell.run("open('o', 'wb').write(b'\\xff')", outputs=["o"], url=address, token=service.token)
    assert run.files == {"o": b"\xff"}


def test_checkpoints_of_a_service_are_like_those_of_this_machine(service: Service) -> None:
    with Sandbox(url=service.url, token=service.token) as sandbox:
        sandbox.run("x = 1").check()
        kept = sandbox.checkpoint("kept")
        sandbox.run("x = 2", checkpoint="other").check()
        assert sandbox.rewind(kept).undone == 1
        assert sandbox.run("x").result == "1"
        assert {"kept", "other"} <= {checkpoint.name for checkpoint in sandbox.checkpoints()}
        sandbox.drop_checkpoint("kept")
        with pytest.raises(sandcell.NotFoundError):
            sandbox.rewind(kept)


def test_commands_run_in_a_sandbox_of_a_service(service: Service) -> None:
    heard: list[str] = []
    with Sandbox(url=service.url, token=service.token) as sandbox:
        assert sandbox.command("echo é; exit 3", on_stdout=heard.append).exit_code == 3
        assert "".join(heard) == "é\n"
        assert int(sandbox.command(["wc", "-c"], stdin=b"x" * (5 << 20)).stdout) == 5 << 20
        with pytest.raises(sandcell.NotFoundError):
            sandbox.command("true", cwd="/no/such/folder")
        process = sandbox.start("cat")
        process.write("typed")
        process.close_stdin()
        assert process.wait(30).stdout == "typed"
        endless = sandbox.start("sleep 1000")
        endless.kill()
        assert endless.wait(30).status == "cancelled"


def test_tasks_use_a_service_at_once_and_can_be_cancelled(service: Service) -> None:
    async def main() -> None:
        runs = (sandcell.run_async(f"print({number})", url=service.url, token=service.token) for number in range(12))
        assert [run.stdout for run in await asyncio.gather(*runs)] == [f"{number}\n" for number in range(12)]
        async with AsyncSandbox(url=service.url, token=service.token) as sandbox:
            await sandbox.run("x = 5")
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(sandbox.run("import time; time.sleep(600)", timeout=700), 0.5)
            assert (await asyncio.wait_for(sandbox.run("x"), 60)).result == "5"
            assert (await sandbox.history(2))[1].status == "cancelled"

    asyncio.run(main())


@pytest.mark.parametrize("token", [None, "wrong", "scwrongwrongwrong"])
def test_a_wrong_token_is_unauthorized(service: Service, token: str | None) -> None:
    with pytest.raises(sandcell.UnauthorizedError) as caught:
        sandcell.run("1", url=service.url, token=token)
    assert "token" in caught.value.remedy


def test_a_wrong_path_is_named(service: Service) -> None:
    with pytest.raises(sandcell.SandcellError) as caught:
        sandcell.run("1", url=service.url.replace("/mcp", "/other"), token=service.token)
    assert caught.value.code in ("invalid_argument", "not_found")
    assert caught.value.remedy


def test_a_fork_uses_connections_of_its_own(service: Service) -> None:
    code = f"""
import os, sandcell
with sandcell.Sandbox(url={service.url!r}, token={service.token!r}) as sandbox:
    sandbox.run("x = 5").check()
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if sandbox.run("x").result == "5" else 2)
        finally:
            os._exit(3)
    assert os.waitpid(child, 0)[1] == 0
    print(sandbox.run("x").result)
"""
    with program(code) as parent:
        output, errors = parent.communicate(timeout=60)
    assert output == "5\n", errors


def test_a_service_that_is_not_there_cannot_be_reached() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(sandcell.BackendUnavailableError, match="cannot be reached"):
            sandcell.run("1", url=f"http://127.0.0.1:{taken.getsockname()[1]}")
    with pytest.raises(sandcell.BackendUnavailableError):
        sandcell.run("1", url="http://no-such-host.invalid:1")


def read_request(connection: socket.socket) -> None:
    """Reads a whole request: what is left unread would reset the connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(1 << 16)
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
    length = next(lengths, 0)
    while len(body) < length:
        body += connection.recv(1 << 16)


Answering = Callable[[bytes], str]


@pytest.fixture
def answering() -> Iterator[Answering]:
    """Starts a server that answers every connection with the same bytes."""
    listener = socket.create_server(("127.0.0.1", 0))
    answers: list[bytes] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                try:
                    read_request(connection)
                    connection.sendall(answers[0])
                    connection.settimeout(5)
                    if answers[0].endswith(b"..."):
                        connection.recv(1)
                except OSError:
                    pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()

    def start(answer: bytes) -> str:
        answers.append(answer)
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(5)


def http(status: str, kind: str, body: bytes, *more: str) -> bytes:
    head = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *more]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (b"", "backend_unavailable"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "backend_unavailable"),
        (b"HTTP/1.1 200 OK\r\nContent-Le...", "timeout"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000 + b"\r\n", "backend_unavailable"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n", "backend_unavailable"),
        (http("200 OK", "text/html", b"<html>"), "internal"),
        (http("200 OK", "application/json", b"{"), "internal"),
        (http("200 OK", "application/json", b"[" * 100_000), "internal"),
        (http("200 OK", "application/json", b'{"id": 99999, "result": {}}'), "internal"),
        (http("200 OK", "application/json", b'"x"'), "internal"),
        (http("200 OK", "text/event-stream", b"data: {}\n\n"), "backend_unavailable"),
        (http("200 OK", "text/event-stream", b"data: \xff\xfe\n\n"), "internal"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: ping\n\n...", "timeout"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            "backend_unavailable",
        ),
        (http("302 Found", "text/plain", b"", "Location: http://127.0.0.1:1/"), "invalid_argument"),
        (http("401 Unauthorized", "text/plain", b"no"), "unauthorized"),
        (http("404 Not Found", "text/plain", b"no"), "invalid_argument"),
        (http("429 Too Many", "application/json", b'{"error": 5}'), "limit_reached"),
        (http("503 Unavailable", "application/json", b"[]"), "backend_unavailable"),
    ],
)
def test_answers_that_make_no_sense_are_errors_of_ours(
    answering: Answering, monkeypatch: pytest.MonkeyPatch, answer: bytes, code: str
) -> None:
    monkeypatch.setattr(_operations, "_ANSWER_TIMEOUT", 0.5)
    monkeypatch.setattr(_operations, "_WAIT", 0.2)
    started = time.monotonic()
    with pytest.raises(sandcell.SandcellError) as caught:
        sandcell.run("1", url=answering(answer), token="t")
    assert caught.value.code == code
    assert caught.value.remedy
    assert time.monotonic() - started < 10


def exchanged(url: str, call: _pool.RestCall) -> Any:
    """Returns the value of a REST call; its error, and any other exception, is raised."""
    connection = HTTPConnection(url.partition("//")[2], timeout=5)
    rest = _pool.Rest("/v1", {}, _pool.rest_error)
    value, error = call(connection, rest)
    if error is not None:
        raise error
    return value


OCTETS = "application/octet-stream"


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (http("206 Partial", OCTETS, b"x" * 9, "Content-Range: bytes 1-9/10"), None),
        (http("206 Partial", OCTETS, b"x" * 5, "Content-Range: bytes 1-5/10"), "another part"),
        (http("206 Partial", OCTETS, b"x" * 10, "Content-Range: bytes 0-9/10"), "another part"),
        (http("206 Partial", OCTETS, b"x" * 5, "Content-Range: bytes 1-9/10"), "broke off"),
        (http("206 Partial", OCTETS, b"x" * 9), "another part"),
        (b"HTTP/1.1 206 P\r\nContent-Type: application/octet-stream\r\nContent-Range: bytes 1-9/10\r\n\r\nxx", "broke off"),
        (http("200 OK", OCTETS, b"x" * 10), "whole file"),
        (http("206 Partial", "multipart/byteranges", b"x" * 9, "Content-Range: bytes 1-9/10"), "no REST"),
        (http("206 Partial", OCTETS, b"x" * 9, "Content-Range: bytes 1-9/10", "Content-Encoding: gzip"), "no REST"),
        (http("200 OK", "text/html", b"<html>"), "no REST"),
        (http("404 Not Found", "text/html", b"<html>"), "no REST"),
        (http("404 Not Found", "application/json", b'{"code": 5, "message": null, "remedy": []}'), "no REST"),
        (http("431 Too Large", "text/plain", b""), "path is too long"),
    ],
)
def test_a_part_of_a_file_is_the_part_that_was_asked_for(answering: Answering, answer: bytes, problem: str | None) -> None:
    taken: list[bytes] = []
    transfer = _pool.Transfer("sb", "a", offset=1, sink=lambda piece: taken.append(bytes(piece)))
    call: _pool.RestCall = lambda connection, rest: _pool.move(connection, rest, transfer)  # noqa: E731
    if problem is None:
        assert exchanged(answering(answer), call) is True
        assert b"".join(taken) == b"x" * 9
    elif problem == "no REST":
        assert exchanged(answering(answer), call) is None
        assert taken == []
    else:
        with pytest.raises(sandcell.SandcellError, match=problem):
            exchanged(answering(answer), call)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (http("200 OK", "application/json", b'{"bytes_written": 9}'), None),
        (http("200 OK", "application/json", b'{"bytes_written": 1}'), "1 of 9"),
        (http("200 OK", "text/html", b"<html>login</html>"), "no REST"),
    ],
)
def test_a_file_was_written_when_the_server_says_that_it_was(
    answering: Answering, answer: bytes, problem: str | None
) -> None:
    transfer = _pool.Transfer("sb", "a", body=memoryview(b"x" * 9), length=9)
    call: _pool.RestCall = lambda connection, rest: _pool.move(connection, rest, transfer)  # noqa: E731
    if problem in (None, "no REST"):
        assert exchanged(answering(answer), call) is (None if problem else True)
    else:
        with pytest.raises(sandcell.InternalError, match=problem):
            exchanged(answering(answer), call)


def test_an_answer_without_end_is_cut_off(answering: Answering, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_http, "MAX_ANSWER", 1 << 20)
    for kind in ("application/json", "text/event-stream"):
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n\r\n".encode()
        with pytest.raises(sandcell.InternalError, match="more than"):
            sandcell.run("1", url=answering(head + b"data: x\n" * (1 << 18)))


def test_tls_needs_a_certificate_that_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ssl

    certificate, key = tmp_path / "cert", tmp_path / "key"
    words = [
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-subj",
        "/CN=localhost",
        "-days",
        "2",
    ]
    files = ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    made = subprocess.run(["openssl", *words, *files], capture_output=True)
    assert made.returncode == 0, made.stderr
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        facts = {"sandcell/execution": {"status": "ok", "stdout": "1", "stderr": "", "result": None}}
        body = json.dumps({"id": 1, "result": {"content": [], "_meta": facts}}).encode()
        while True:
            try:
                connection, _ = listener.accept()
                with context.wrap_socket(connection, server_side=True) as secure:
                    read_request(secure)
                    secure.sendall(http("200 OK", "application/json", body, "Connection: close"))
            except ssl.SSLError:
                continue
            except OSError:
                return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    url = f"https://localhost:{listener.getsockname()[1]}"
    with pytest.raises(sandcell.BackendUnavailableError, match="not trusted") as caught:
        sandcell.run("1", url=url)
    assert "SSL_CERT_FILE" in caught.value.remedy
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert sandcell.run("1", url=f"{url}/other").status == "ok"
    with pytest.raises(sandcell.BackendUnavailableError, match="not trusted"):
        sandcell.run("1", url=url.replace("localhost", "127.0.0.1"))
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(5)


def test_threads_of_the_channel_end_when_nobody_needs_them(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pool, "_IDLE_TIMEOUT", 0.05)
    channel: Any = _http.HttpChannel(service.url, service.token)
    call = channel.start("tools/list", {})
    assert call.wait(30)
    assert call.result()["tools"]
    until(lambda: channel._threads == 0)
