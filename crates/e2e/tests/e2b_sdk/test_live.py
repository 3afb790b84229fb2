"""Terminals, watched folders and ports of programs."""

import base64
import hashlib
import os
import socket
import time
from urllib.parse import urlsplit

import httpx
import pytest
from e2b_code_interpreter import Sandbox
from e2b import NotFoundException, SandboxException
from e2b.sandbox.commands.command_handle import PtySize

SERVER = os.environ["E2B_SANDBOX_URL"]
WEB_SERVER = r"""
import http.server, time
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        if self.path == "/slow":
            self.send_response(200); self.send_header("Transfer-Encoding", "chunked"); self.end_headers()
            for part in (b"one", b"two"):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part)); self.wfile.flush(); time.sleep(1)
            self.wfile.write(b"0\r\n\r\n")
        elif self.path == "/host":
            self.answer(self.headers["Host"])
        elif self.path == "/broken":
            self.send_response(200); self.send_header("Transfer-Encoding", "chunked"); self.end_headers()
            self.wfile.write(b"4\r\npart\r\n"); self.wfile.flush(); self.close_connection = True
        else:
            self.answer(repr((self.path, sorted(name.lower() for name in self.headers))))
    def do_POST(self):
        length = self.headers.get("Content-Length")
        if length is None:
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size); self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(length))
        self.answer("%d %s" % (len(body), body[:5].decode()))
    do_OPTIONS = do_PATCH = lambda self: self.answer(self.command)
    def answer(self, text):
        self.send_response(201); self.send_header("Content-Length", str(len(text))); self.send_header("X-Own", "1")
        self.end_headers(); self.wfile.write(text.encode())
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""


def headers(sandbox, port, **more):
    return {
        "E2b-Sandbox-Id": sandbox.sandbox_id,
        "E2b-Sandbox-Port": str(port),
        "E2b-Traffic-Access-Token": sandbox.traffic_access_token,
        **more,
    }


@pytest.fixture(scope="module")
def served():
    """A sandbox with a web server on port 8000."""
    made = Sandbox.create(timeout=120)
    made.files.write("server.py", WEB_SERVER)
    made.commands.run("python3 server.py", background=True, timeout=0)
    for _ in range(100):
        if httpx.get(SERVER + "/", headers=headers(made, 8000)).status_code == 201:
            break
        time.sleep(0.1)
    yield made
    made.kill()


def test_a_terminal_has_a_size_and_a_shell(sandbox):
    said = []
    terminal = sandbox.pty.create(size=PtySize(rows=30, cols=100), timeout=30)
    sandbox.pty.send_stdin(terminal.pid, b"stty size; tty; echo $TERM\n")
    time.sleep(0.5)
    sandbox.pty.resize(terminal.pid, PtySize(rows=41, cols=77))
    sandbox.pty.send_stdin(terminal.pid, b"stty size; exit 3\n")
    with pytest.raises(Exception) as ended:
        terminal.wait(on_pty=said.append)
    text = b"".join(said).decode()
    assert "30 100" in text and "/dev/pts/" in text and "xterm-256color" in text and "41 77" in text, text
    assert ended.value.exit_code == 3, ended.value


def test_a_terminal_is_killed(sandbox):
    terminal = sandbox.pty.create(size=PtySize(rows=24, cols=80), timeout=30)
    assert sandbox.pty.kill(terminal.pid) is True
    with pytest.raises(Exception):
        terminal.wait()
    assert sandbox.pty.kill(terminal.pid) is False
    program = sandbox.commands.run("sleep 100", background=True)
    with pytest.raises(SandboxException, match="no terminal"):
        sandbox.pty.send_stdin(program.pid, b"x")
    program.kill()


def until(watch, *expected):
    """Collects changes until all of these have come."""
    seen = []
    for _ in range(100):
        seen += [(event.name, event.type.value) for event in watch.get_new_events()]
        if all(one in seen for one in expected):
            return seen
        time.sleep(0.05)
    raise AssertionError(seen)


def test_changes_of_a_folder_are_reported(sandbox):
    sandbox.files.make_dir("watched/old")
    flat, deep = sandbox.files.watch_dir("watched"), sandbox.files.watch_dir("watched", recursive=True)
    sandbox.files.write("watched/a", "1")
    sandbox.files.write("watched/a", "2")
    sandbox.files.write("watched/old/in", "1")
    sandbox.commands.run("cd watched; chmod 600 a; mkdir -p new/er; echo 1 >new/er/x; mv a b; rm b")
    seen = until(flat, ("b", "remove"))
    assert [one for one in seen if one[0] in "ab"] == [
        ("a", "create"), ("a", "write"), ("a", "write"), ("a", "chmod"), ("a", "rename"), ("b", "create"), ("b", "remove"),
    ], seen
    assert not [name for name, _ in seen if "/" in name or name.startswith(".")], seen
    until(deep, ("old/in", "create"), ("new", "create"), ("new/er", "create"), ("new/er/x", "create"))
    flat.stop()
    sandbox.files.write("watched/c", "")
    with pytest.raises(Exception):
        flat.get_new_events()
    assert ("c", "create") in until(deep, ("c", "create"))
    deep.stop()


def test_what_is_no_folder_cannot_be_watched(sandbox):
    with pytest.raises(NotFoundException):
        sandbox.files.watch_dir("nothing-here")
    sandbox.files.write("plain", "")
    with pytest.raises(SandboxException, match="not a directory"):
        sandbox.files.watch_dir("plain")


def test_the_number_of_watchers_is_bounded(fresh):
    watchers = [fresh.files.watch_dir("/home/user") for _ in range(64)]
    with pytest.raises(SandboxException, match="64"):
        fresh.files.watch_dir("/home/user")
    watchers.pop().stop()
    fresh.files.watch_dir("/home/user").stop()


def test_a_program_is_reached_on_its_port(served):
    answer = httpx.get(SERVER + "/a/b?c=%2F", headers=headers(served, 8000, **{"X-Mine": "1"}))
    assert (answer.status_code, answer.headers["x-own"]) == (201, "1")
    path, names = eval(answer.text)
    assert path == "/a/b?c=%2F" and "x-mine" in names, answer.text
    assert not [name for name in names if name.startswith("e2b-")], names
    by_name = {"Host": served.get_host(8000), "E2b-Traffic-Access-Token": served.traffic_access_token}
    assert httpx.get(SERVER + "/x", headers=by_name).status_code == 201
    for method in ("OPTIONS", "PATCH"):
        assert httpx.request(method, SERVER + "/", headers=headers(served, 8000)).text == method
    large = b"hello" * 1_000_000
    assert httpx.post(SERVER + "/", content=large, headers=headers(served, 8000)).text == "5000000 hello"
    parts = httpx.post(SERVER + "/", content=iter([b"hel", b"lo"]), headers=headers(served, 8000))
    assert parts.text == "5 hello"


def test_an_answer_is_passed_on_as_it_comes_and_breaks_off_like_the_program(served):
    began = time.time()
    with httpx.stream("GET", SERVER + "/slow", headers=headers(served, 8000)) as answer:
        times = [(part, time.time() - began) for part in answer.iter_raw()]
    assert [part for part, _ in times] == [b"one", b"two"] and times[1][1] - times[0][1] > 0.3, times
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(SERVER + "/broken", headers=headers(served, 8000))


def test_a_port_needs_its_secret_and_a_program(served):
    closed = httpx.get(SERVER + "/", headers=headers(served, 8001))
    assert closed.status_code == 502
    assert closed.json() == {
        "sandboxId": served.sandbox_id, "message": "The sandbox is running but port is not open", "port": 8001, "code": 502,
    }
    without = headers(served, 8000)
    del without["E2b-Traffic-Access-Token"]
    assert httpx.get(SERVER + "/", headers=without).status_code == 403
    assert httpx.get(SERVER + "/", headers={**without, "E2b-Traffic-Access-Token": "wrong"}).status_code == 502


def test_a_public_sandbox_needs_no_secret_for_its_ports_only():
    host = "shown.example:${PORT}"
    made = Sandbox.create(timeout=60, network={"allow_public_traffic": True, "mask_request_host": host})
    try:
        made.files.write("server.py", WEB_SERVER)
        made.commands.run("python3 server.py", background=True)
        public = headers(made, 8000)
        del public["E2b-Traffic-Access-Token"]
        for _ in range(100):
            answer = httpx.get(SERVER + "/", headers=public)
            if answer.status_code == 201:
                break
            time.sleep(0.1)
        assert answer.status_code == 201, answer.text
        assert httpx.get(SERVER + "/host", headers=public).text == "shown.example:8000"
        for port in (49983, 49999):
            assert httpx.get(SERVER + "/health", headers={**public, "E2b-Sandbox-Port": str(port)}).status_code == 401
    finally:
        made.kill()


ECHO = r"""
import base64, hashlib, socketserver
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        head = []
        while (line := self.rfile.readline().strip()):
            head.append(line.decode())
        key = [line.split(": ")[1] for line in head if line.lower().startswith("sec-websocket-key")][0]
        accept = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()
        self.wfile.write(("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Accept: %s\r\n\r\n" % accept).encode())
        while data := self.rfile.read1(65536):
            self.wfile.write(data)
socketserver.ThreadingTCPServer(("127.0.0.1", 9000), Handler).serve_forever()
"""


def test_a_websocket_passes_through(served):
    served.files.write("echo.py", ECHO)
    served.commands.run("python3 echo.py", background=True)
    place = urlsplit(SERVER)
    key = base64.b64encode(b"0123456789abcdef").decode()
    lines = [
        "GET /socket HTTP/1.1", f"Host: {place.netloc}", "Upgrade: websocket", "Connection: keep-alive, Upgrade",
        f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", *(f"{name}: {value}" for name, value in headers(served, 9000).items()),
    ]
    for _ in range(100):
        with socket.create_connection((place.hostname, place.port), timeout=10) as stream:
            stream.sendall("\r\n".join([*lines, "", ""]).encode())
            head = b""
            while b"\r\n\r\n" not in head:
                head += stream.recv(65536)
            if b" 502 " in head.split(b"\r\n")[0]:
                time.sleep(0.1)
                continue
            assert head.startswith(b"HTTP/1.1 101"), head
            accept = hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()
            assert base64.b64encode(accept) in head, head
            for size in (1, 100_000):
                stream.sendall(b"x" * size)
                got = 0
                while got < size:
                    got += len(stream.recv(65536))
            return
    raise AssertionError(head)
