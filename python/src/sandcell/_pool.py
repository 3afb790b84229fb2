"""A pool of threads, each with an HTTP connection to one server, and transfers of raw bytes over it.

Exchanges run in threads of the pool, so that a caller can give one up at once: its connection is closed, which ends the
work inside. Nothing is sent twice.
"""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any, Optional

from ._call import MAX_ANSWER, Call
from ._errors import (
    BackendUnavailableError,
    ExecutionCancelledError,
    InternalError,
    InvalidArgumentError,
    SandcellError,
    error_for,
)

if TYPE_CHECKING:
    import http.client
    import socket

#: Exchanges under way at once; others wait for one of them.
MAX_THREADS = 128
#: The same for REST calls: a sandbox takes 32 file operations at once, and each holds memory of the server.
MAX_REST_THREADS = 16
#: The same for exchanges of function calls, one of which waits for each sandbox.
MAX_EXCHANGE_THREADS = 1024
#: Seconds without a byte; above the longest wait of a server (55 s) and its progress.
_SILENCE_TIMEOUT = 600.0
#: Seconds that an idle thread, and its connection, are kept.
_IDLE_TIMEOUT = 30.0
#: Bytes of a file that are held at once.
_PIECE = 1 << 20

_SAME_VERSIONS = "check that package and program have the same version, and that no proxy between them changes answers"

#: An exchange returns a value and an error, one of which is None.
Outcome = tuple[Any, Optional[SandcellError]]


class Transfer:
    """The bytes of one file on their way, and the number of bytes that have moved.

    With ``body`` they go into the sandbox. Without, the bytes from ``offset`` on are handed to ``sink``.
    """

    __slots__ = ("append", "body", "fault", "length", "moved", "offset", "path", "sandbox", "sink")

    def __init__(
        self,
        sandbox: str,
        path: str,
        *,
        body: memoryview | IO[bytes] | None = None,
        length: int = 0,
        append: bool = False,
        offset: int = 0,
        sink: Callable[[memoryview], object] | None = None,
    ) -> None:
        self.sandbox = sandbox
        self.path = path
        self.body = body
        self.length = length
        self.append = append
        self.offset = offset
        self.sink = sink
        self.moved = 0
        #: The exception of ``body`` or ``sink``, which ended the transfer.
        self.fault: Exception | None = None

    def read(self, count: int) -> memoryview | bytes:
        """Returns the next bytes of the body."""
        if isinstance(self.body, memoryview):
            return self.body[self.moved : self.moved + count]
        try:
            piece = self.body.read(count) if self.body is not None else b""
            if not piece:
                raise InvalidArgumentError("the file became shorter while it was sent", "send it when nothing writes to it")
            return piece
        except Exception as fault:
            self.fault = fault
            raise

    def take(self, piece: memoryview) -> None:
        """Hands bytes to the sink."""
        try:
            if self.sink is not None:
                self.sink(piece)
        except Exception as fault:
            self.fault = fault
            raise


class _Job:
    __slots__ = ("call", "exchange", "socket")

    def __init__(self, call: Call, exchange: Callable[[http.client.HTTPConnection], Outcome]) -> None:
        self.call = call
        self.exchange = exchange
        self.socket: socket.socket | None = None


class HttpPool:
    """Threads with connections to a server. The server's name for messages is ``url``."""

    def __init__(self, url: str, max_threads: int) -> None:
        self.url = url
        self._max_threads = max_threads
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._jobs: dict[Call, _Job] = {}
        self._queue: deque[_Job] = deque()
        self._ready = threading.Condition()
        self._idle = 0
        self._threads = 0
        self._closed = False

    def close(self) -> None:
        """Ends the threads. What is under way ends with its connection."""
        self._closed = True
        if self._pid == os.getpid():
            with self._ready:
                self._ready.notify_all()

    def check(self) -> None:
        if self._pid != os.getpid():
            self._reset()  # The threads and connections are the parent's.

    def connect(self) -> http.client.HTTPConnection:
        """Returns an open connection."""
        raise NotImplementedError

    def fault(self, fault: Exception) -> SandcellError:
        """Returns the error for an exception of an exchange."""
        return BackendUnavailableError(f"{self.url} does not answer: {type(fault).__name__}: {fault}", "try again")

    def submit(self, call: Call, exchange: Callable[[http.client.HTTPConnection], Outcome]) -> None:
        """Finishes the call with the outcome of an exchange. Returns at once."""
        job = _Job(call, exchange)
        with self._ready:
            self._jobs[call] = job
            self._queue.append(job)
            if self._idle >= len(self._queue):
                self._ready.notify()
                return
            if self._threads >= self._max_threads:
                return
            self._threads += 1
        try:
            threading.Thread(target=self._work, name="sandcell-http", daemon=True).start()
        except RuntimeError as error:
            with self._ready:
                self._threads -= 1
                alone = self._threads == 0
                if alone:
                    # Nobody is there to do it, now or later.
                    self._jobs.pop(call, None)
                    self._queue.remove(job)
            if alone:
                raise BackendUnavailableError(
                    f"no thread can be started: {error}", "end some threads, then try again"
                ) from None

    def cancel(self, call: Call) -> None:
        if self._pid != os.getpid():
            return  # The call is the parent's, whose threads may have held the lock.
        with self._ready:
            job = self._jobs.pop(call, None)
        if job is None:
            return
        call.finish(error=ExecutionCancelledError("the call was cancelled", "call again"))
        if job.socket is not None:
            import socket

            try:
                job.socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    # Everything below runs in the threads.

    def _work(self) -> None:
        connection = None
        while True:
            with self._ready:
                if not self._queue and not self._closed:
                    self._idle += 1
                    self._ready.wait(_IDLE_TIMEOUT)
                    self._idle -= 1
                if not self._queue:
                    self._threads -= 1
                    break
                job = self._queue.popleft()
            if job.call.done:
                continue
            connection = self._carry_out(job, connection)
            del job  # It holds the data of a transfer.
        if connection is not None:
            connection.close()

    def _carry_out(self, job: _Job, connection: http.client.HTTPConnection | None) -> http.client.HTTPConnection | None:
        """Finishes the call of a job; returns the connection, if it can be used again."""
        if connection is not None and (connection.sock is None or is_readable(connection.sock)):
            connection.close()
            connection = None
        try:
            connection = connection or self.connect()
            connection.sock.settimeout(_SILENCE_TIMEOUT)
            job.socket = connection.sock
            if job.call.done:
                raise ConnectionAbortedError("the call was cancelled")
            value, error = job.exchange(connection)
        except Exception as fault:  # Whatever the other end sends, the caller gets an error of ours.
            value, error = None, fault if isinstance(fault, SandcellError) else self.fault(fault)
        with self._ready:
            cancelled = self._jobs.pop(job.call, None) is None
        # A call that was cancelled shuts the connection down, perhaps only now.
        if connection is not None and (error is not None or cancelled):
            connection.close()
            connection = None
        job.call.finish(value, error)
        return connection


def is_readable(connection: socket.socket) -> bool:
    """Whether the other end has closed the connection, or sent something that nobody asked for."""
    import select

    try:
        if not hasattr(select, "poll"):
            return bool(select.select([connection], [], [], 0)[0])  # Windows, whose numbers of sockets have no bound.
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        return bool(poll.poll(0))
    except (OSError, ValueError):  # It is closed at this end.
        return True


class Rest:
    """The REST calls of a server: where they are, the headers that they need, and the meaning of a refusal.

    ``refusal`` makes an error of the status and the body of an answer; None means that the server has no REST calls.
    """

    __slots__ = ("base", "headers", "refusal")

    def __init__(self, base: str, headers: dict[str, str], refusal: Callable[[int, bytes], SandcellError | None]) -> None:
        self.base = base
        self.headers = headers
        self.refusal = refusal


def rest_error(status: int, body: bytes) -> SandcellError | None:
    """Returns the error that an answer describes; None if it describes none."""
    import json

    if status in (414, 431):
        return InvalidArgumentError("the path is too long for a request", "use a shorter path")
    try:
        answer = json.loads(body)
        parts = answer["code"], answer["message"], answer["remedy"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return error_for(*parts) if all(isinstance(part, str) for part in parts) else None


#: Calls REST. The value of the outcome is None where the server has no REST calls.
RestCall = Callable[["http.client.HTTPConnection", Rest], Outcome]


def output_part(execution: str, stream: str, offset: int, most: int) -> RestCall:
    """Returns the call that reads at most ``most`` bytes of what an execution printed. Its value is a JSON object."""

    def exchange(connection: http.client.HTTPConnection, rest: Rest) -> Outcome:
        import json
        from urllib.parse import quote

        query = f"stream={stream}&offset={offset}&limit={most}"
        address = f"{rest.base}/executions/{quote(execution, safe='')}/output?{query}"
        connection.request("GET", address, headers=rest.headers)
        response = connection.getresponse()
        body = response.read(MAX_ANSWER)
        if response.status != 200:
            return None, rest.refusal(response.status, body)
        return (json.loads(body) if _is(response, "application/json") else None), None

    return exchange


def move(connection: http.client.HTTPConnection, rest: Rest, transfer: Transfer) -> Outcome:
    """Moves the bytes of a transfer. The value is True."""
    from urllib.parse import quote, urlencode

    query = {"path": transfer.path, **({"append": "true"} if transfer.append else {})}
    address = f"{rest.base}/sandboxes/{quote(transfer.sandbox, safe='')}/file?{urlencode(query)}"
    if transfer.body is None:
        connection.request("GET", address, headers={**rest.headers, "Range": f"bytes={transfer.offset}-"})
    else:
        connection.putrequest("PUT", address)
        for name, value in {**rest.headers, "Content-Length": str(transfer.length)}.items():
            connection.putheader(name, value)
        try:
            connection.endheaders()
            _send(connection, transfer)
        except (BrokenPipeError, ConnectionResetError):
            pass  # The server refused before it had read all; its answer tells why.
    response = connection.getresponse()
    if response.status not in ((200,) if transfer.body is not None else (200, 206)):
        error = rest.refusal(response.status, response.read(64 << 10))
        connection.close()  # What was not read, or not sent, would be taken for the next answer.
        return None, error
    if transfer.body is not None:
        return _was_written(response, transfer), None
    if not _is(response, "application/octet-stream"):
        connection.close()
        return None, None
    _receive(response, transfer)
    return True, None


def _is(response: http.client.HTTPResponse, kind: str) -> bool:
    """Whether an answer has this type; another one is not from sandcell, but a login page, for example."""
    encoding = response.getheader("Content-Encoding", "identity")
    found = (response.getheader("Content-Type") or "").partition(";")[0].strip().lower()
    return found == kind and encoding == "identity"


def _send(connection: http.client.HTTPConnection, transfer: Transfer) -> None:
    while (left := transfer.length - transfer.moved) > 0:
        piece = transfer.read(min(left, _PIECE))
        connection.sock.sendall(piece)
        transfer.moved += len(piece)


def _was_written(response: http.client.HTTPResponse, transfer: Transfer) -> bool | None:
    """Returns True for the answer to a file that was written whole, and None for one that is not sandcell's."""
    import json

    body = response.read(64 << 10)
    if not _is(response, "application/json"):
        return None
    written = json.loads(body).get("bytes_written")
    if written != transfer.length:
        raise InternalError(f"the server has written {written} of {transfer.length:,} bytes", _SAME_VERSIONS)
    return True


def _receive(response: http.client.HTTPResponse, transfer: Transfer) -> None:
    """Hands the bytes of an answer to the sink. Their number must be what the server says that the file has."""
    expected = response.length
    if response.status == 206:
        found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", response.getheader("Content-Range") or "")
        first, last, total = (int(number) for number in found.groups()) if found else (-1, -1, -1)
        if first != transfer.offset or last != total - 1:
            raise InternalError("the server sent another part of the file than the one asked for", _SAME_VERSIONS)
        expected = total - first
    elif transfer.offset:
        raise InternalError("the server sent the whole file instead of a part", _SAME_VERSIONS)
    buffer = memoryview(bytearray(_PIECE))
    while count := response.readinto(buffer):
        transfer.take(buffer[:count])
        transfer.moved += count
    if expected is None or transfer.moved != expected:
        raise BackendUnavailableError(
            f"the file broke off after {transfer.moved:,} of {expected or 0:,} bytes",
            "read it again; it may have become shorter meanwhile",
        )
