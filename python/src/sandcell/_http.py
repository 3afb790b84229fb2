"""A service elsewhere: the same requests as HTTP, each one complete in itself.

Requests run in threads of the channel, so that a caller can give one up at once: the connection is closed, which ends
the code inside. Redirections are not followed, so the token reaches the named host only. Nothing is sent twice.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ._call import MAX_ANSWER, PROTOCOL, Call, encode
from ._errors import (
    BackendUnavailableError,
    ExecutionCancelledError,
    InternalError,
    InvalidArgumentError,
    LimitReachedError,
    SandcellError,
    UnauthorizedError,
    error_for,
)
from ._stdio import outcome_of
from ._version import VERSION

if TYPE_CHECKING:
    import http.client
    import socket

#: Requests under way at once; others wait for one of them.
_MAX_THREADS = 128
#: Seconds to connect.
_CONNECT_TIMEOUT = 10.0
#: Seconds without a byte; above the longest wait of a server (55 s) and its progress.
_SILENCE_TIMEOUT = 600.0
#: Seconds that an idle thread, and its connection, are kept.
_IDLE_TIMEOUT = 30.0


class _Job:
    __slots__ = ("body", "call", "headers", "socket")

    def __init__(self, call: Call, body: bytes, headers: dict[str, str]) -> None:
        self.call = call
        self.body = body
        self.headers = headers
        self.socket: socket.socket | None = None


class HttpChannel:
    """A service at an address."""

    def __init__(self, url: str, token: str | None) -> None:
        parts = urlsplit(url)
        try:
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment or parts.username:
            raise InvalidArgumentError(f"{url!r} is no address of a service", 'pass one like "https://box.example:8123"')
        if token is not None and not (token.isascii() and token.isprintable() and token):
            raise InvalidArgumentError(
                "the token holds characters that no token has", "pass what `sandcell token create` printed"
            )
        self._secure = parts.scheme == "https"
        self._host = host
        self._port = port or (443 if self._secure else 80)
        self._path = parts.path if parts.path not in ("", "/") else "/mcp"
        self._token = token
        self.url = f"{parts.scheme}://{parts.netloc}{self._path}"
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._numbers = itertools.count(1)
        self._jobs: dict[int, _Job] = {}
        self._queue: deque[_Job] = deque()
        self._ready = threading.Condition()
        self._idle = 0
        self._threads = 0

    def check(self) -> None:
        if self._pid != os.getpid():
            self._reset()  # The threads and connections are the parent's.

    def start(self, method: str, params: dict[str, Any], call: Call | None = None) -> Call:
        self.check()
        call = call or Call()
        call.id = next(self._numbers)
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": PROTOCOL,
            "Mcp-Method": method,
            "User-Agent": f"sandcell-python/{VERSION}",
        }
        name = params.get("name", params.get("uri"))
        if isinstance(name, str):
            headers["Mcp-Name"] = name
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        job = _Job(call, encode(call.id, method, params, VERSION), headers)
        with self._ready:
            self._jobs[call.id] = job
            self._queue.append(job)
            if self._idle >= len(self._queue):
                self._ready.notify()
                return call
            if self._threads >= _MAX_THREADS:
                return call
            self._threads += 1
        try:
            threading.Thread(target=self._work, name="sandcell-http", daemon=True).start()
        except RuntimeError as error:
            with self._ready:
                self._threads -= 1
                alone = self._threads == 0
            if alone:
                raise BackendUnavailableError(
                    f"no thread can be started: {error}", "end some threads, then try again"
                ) from None
        return call

    def cancel(self, call: Call) -> None:
        with self._ready:
            job = self._jobs.pop(call.id, None)
        if job is None:
            return
        call.finish(error=ExecutionCancelledError("the call was cancelled", "call again"))
        if job.socket is not None:
            import socket

            try:
                job.socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def post(self, method: str, params: dict[str, Any]) -> None:
        try:
            self.start(method, params)
        except SandcellError:
            return

    # Everything below runs in the threads.

    def _work(self) -> None:
        connection = None
        while True:
            with self._ready:
                if not self._queue:
                    self._idle += 1
                    self._ready.wait(_IDLE_TIMEOUT)
                    self._idle -= 1
                if not self._queue:
                    self._threads -= 1
                    break
                job = self._queue.popleft()
            if job.call.done:
                continue
            if connection is not None and _is_stale(connection):
                connection.close()
                connection = None
            try:
                connection = connection or self._connect()
                value, error = self._exchange(connection, job)
            except Exception as fault:  # Whatever the other end sends, whoever waits gets an error of ours.
                value, error = None, self._fault(fault)
            with self._ready:
                self._jobs.pop(job.call.id, None)
            if error is not None and connection is not None:
                connection.close()
                connection = None
            job.call.finish(value, error)
        if connection is not None:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        import http.client

        if self._secure:
            import ssl

            context = ssl.create_default_context()
            secure = http.client.HTTPSConnection(self._host, self._port, timeout=_CONNECT_TIMEOUT, context=context)
            secure.connect()
            return secure
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_CONNECT_TIMEOUT)
        connection.connect()
        return connection

    def _exchange(self, connection: http.client.HTTPConnection, job: _Job) -> tuple[Any, SandcellError | None]:
        connection.sock.settimeout(_SILENCE_TIMEOUT)
        job.socket = connection.sock
        if job.call.done:
            raise ConnectionAbortedError("the call was cancelled")
        connection.request("POST", self._path, job.body, job.headers)
        response = connection.getresponse()
        if response.status != 200:
            return None, self._refusal(response.status, response.read(64 << 10))
        kind = (response.getheader("Content-Type") or "").partition(";")[0].strip().lower()
        if kind == "application/json":
            body = response.read(MAX_ANSWER + 1)
            if len(body) > MAX_ANSWER:
                raise InternalError(f"the service sent more than {MAX_ANSWER:,} bytes", "check the address")
            found = _answer(body, job.call.id)
            if found is None:
                raise InternalError("the service answered another request than the one that was sent", "check the address")
            return found
        if kind == "text/event-stream":
            outcome = _read_events(response, job.call.id)
            response.read(MAX_ANSWER)  # The end of the stream, so that the connection can be used again.
            return outcome
        raise InternalError(f"the service answered with {kind or 'no type'}, not JSON", "check the address")

    def _refusal(self, status: int, body: bytes) -> SandcellError:
        import json

        code, said, remedy = "", "", ""
        try:
            error = json.loads(body)["error"]
            data = error.get("data")
            detail = data if isinstance(data, dict) else error
            said = str(detail.get("message") or error.get("message") or "")
            remedy = str(detail.get("remedy") or "")
            code = detail["code"] if isinstance(detail.get("code"), str) else ""
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            pass
        said = said or f"HTTP status {status}"
        if code:
            return error_for(code, said, remedy)
        if status in (401, 403):
            return UnauthorizedError(f"{self.url}: {said}", remedy or "pass a token: `sandcell token create NAME` makes one")
        if status in (413, 429):
            return LimitReachedError(f"{self.url}: {said}", remedy or "send less, or try again later")
        if status == 404 or 300 <= status < 400:
            return InvalidArgumentError(f"{self.url}: {said}", "check the address: it is the one of `sandcell serve --http`")
        return BackendUnavailableError(f"{self.url}: {said}", remedy or "try again later")

    def _fault(self, fault: Exception) -> SandcellError:
        if isinstance(fault, SandcellError):
            return fault
        import ssl

        if isinstance(fault, ssl.SSLCertVerificationError):
            return BackendUnavailableError(
                f"the certificate of {self.url} is not trusted: {fault.verify_message}",
                "name the certificate of its authority with the variable SSL_CERT_FILE",
            )
        if isinstance(fault, OSError):
            return BackendUnavailableError(
                f"{self.url} cannot be reached: {fault}", "check the address, and that `sandcell serve --http` runs there"
            )
        return BackendUnavailableError(
            f"{self.url} does not answer as a sandcell service: {type(fault).__name__}: {fault}", "check the address"
        )


def _is_stale(connection: http.client.HTTPConnection) -> bool:
    """Whether the service has closed an idle connection, or sent something that nobody asked for."""
    import select

    if connection.sock is None:
        return True
    try:
        return bool(select.select([connection.sock], [], [], 0)[0])
    except (OSError, ValueError):
        return True


def _read_events(response: http.client.HTTPResponse, number: int) -> tuple[Any, SandcellError | None]:
    """Reads a stream of events up to the answer to a request."""
    data: list[bytes] = []
    size = 0
    while True:
        line = response.readline(MAX_ANSWER + 1)
        size += len(line)
        if size > MAX_ANSWER:
            raise InternalError(f"the service sent more than {MAX_ANSWER:,} bytes", "check the address")
        if not line:
            raise BackendUnavailableError("the service closed the stream before its answer", "call again")
        line = line.rstrip(b"\r\n")
        if line.startswith(b"data:"):
            data.append(line[5:].lstrip(b" "))
        elif not line and data:
            body = b"\n".join(data)
            data = []
            if body.strip() and (found := _answer(body, number)) is not None:
                return found


def _answer(body: bytes, number: int) -> tuple[Any, SandcellError | None] | None:
    """Returns what a message says about a request; None when it is about something else."""
    import json

    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        raise InternalError("the service sent something that is no JSON", "check the address") from None
    if isinstance(message, dict) and message.get("id") == number and "method" not in message:
        return outcome_of(message)
    return None


_channels: dict[tuple[str, str | None], HttpChannel] = {}


def http_channel(url: str, token: str | None) -> HttpChannel:
    """Returns the channel to a service; sandboxes of the same address and token share it."""
    key = (url, token)
    channel = _channels.get(key)
    if channel is None:
        if len(_channels) >= 64:
            _channels.clear()  # Channels in use stay with their sandboxes.
        channel = _channels.setdefault(key, HttpChannel(url, token))
    return channel
