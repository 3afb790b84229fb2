"""A pool of threads, each with an HTTP connection to one server, and transfers of raw bytes over it.

Exchanges run in threads of the pool, so that a caller can give one up at once: its connection is closed, which ends the
work inside. Nothing is sent twice.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any, Optional

from ._call import MAX_ANSWER, Call
from ._errors import BackendUnavailableError, ExecutionCancelledError, InternalError, InvalidArgumentError, SandcellError

if TYPE_CHECKING:
    import http.client
    import socket

#: Exchanges under way at once; others wait for one of them.
_MAX_THREADS = 128
#: Seconds without a byte; above the longest wait of a server (55 s) and its progress.
_SILENCE_TIMEOUT = 600.0
#: Seconds that an idle thread, and its connection, are kept.
_IDLE_TIMEOUT = 30.0
#: Bytes of a file that are held at once.
_PIECE = 1 << 20

#: An exchange returns a value and an error, one of which is None.
Outcome = tuple[Any, Optional[SandcellError]]


class Transfer:
    """The bytes of one file on their way, and the number of bytes that have moved.

    With ``body`` they go into the sandbox. Without, the bytes from ``offset`` on are handed to ``sink``.
    """

    __slots__ = ("append", "body", "length", "moved", "offset", "path", "sandbox", "sink")

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


class _Job:
    __slots__ = ("call", "exchange", "socket")

    def __init__(self, call: Call, exchange: Callable[[http.client.HTTPConnection], Outcome]) -> None:
        self.call = call
        self.exchange = exchange
        self.socket: socket.socket | None = None


class HttpPool:
    """Threads with connections to a server. The server's name for messages is ``url``."""

    def __init__(self, url: str) -> None:
        self.url = url
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
            if self._threads >= _MAX_THREADS:
                return
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

    def cancel(self, call: Call) -> None:
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
            if connection is not None and _is_stale(connection):
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
                self._jobs.pop(job.call, None)
            if error is not None and connection is not None:
                connection.close()
                connection = None
            job.call.finish(value, error)
        if connection is not None:
            connection.close()


def _is_stale(connection: http.client.HTTPConnection) -> bool:
    """Whether the server has closed an idle connection, or sent something that nobody asked for."""
    import select

    if connection.sock is None:
        return True
    try:
        return bool(select.select([connection.sock], [], [], 0)[0])
    except (OSError, ValueError):
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
        return json.loads(body), None

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
    if response.status not in (200, 206):
        error = rest.refusal(response.status, response.read(64 << 10))
        connection.close()  # What was not read, or not sent, would be taken for the next answer.
        return None, error
    if transfer.body is not None:
        response.read(MAX_ANSWER)
    else:
        _receive(response, transfer)
    return True, None


def _send(connection: http.client.HTTPConnection, transfer: Transfer) -> None:
    while (left := transfer.length - transfer.moved) > 0:
        if isinstance(transfer.body, memoryview):
            piece: memoryview | bytes = transfer.body[transfer.moved : transfer.moved + _PIECE]
        else:
            piece = transfer.body.read(min(left, _PIECE)) if transfer.body is not None else b""
        if not piece:
            raise InvalidArgumentError("the file became shorter while it was sent", "send it when nothing writes to it")
        connection.sock.sendall(piece)
        transfer.moved += len(piece)


def _receive(response: http.client.HTTPResponse, transfer: Transfer) -> None:
    if response.status == 200 and transfer.offset:
        raise InternalError("the server sent the whole file instead of a part", "check that package and program match")
    buffer = memoryview(bytearray(_PIECE))
    expected = response.length
    while count := response.readinto(buffer):
        if transfer.sink is not None:
            transfer.sink(buffer[:count])
        transfer.moved += count
    if expected is not None and transfer.moved < expected:
        raise BackendUnavailableError(
            f"the file broke off after {transfer.moved:,} of {expected:,} bytes",
            "read it again; it may have become shorter meanwhile",
        )
