"""A request under way, and what the two transports have in common.

A transport starts a request and hands out a :class:`Call` at once. A thread of the transport finishes it. A caller waits
for it with a bound, in a thread or in an event loop; that is the only difference between the two interfaces.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from ._errors import InvalidArgumentError, LimitReachedError, SandcellError

if TYPE_CHECKING:
    from ._pool import RestCall

#: The revision of MCP that both transports speak: without sessions, each request complete in itself.
PROTOCOL = "2026-07-28"
#: The tool that takes calls of functions; a request for it waits at the server most of the time.
EXCHANGE = "exchange_tool_calls"
#: Bytes of one request; the server drops larger ones.
MAX_REQUEST = 16 << 20
#: Bytes of one answer: far above what the server sends.
MAX_ANSWER = 64 << 20


class Call:
    """One request, finished once. Any number of threads and event loops may wait for it."""

    __slots__ = ("_error", "_notify", "_pending", "_value", "done", "id")

    def __init__(self) -> None:
        #: The number of the request, above 0 as soon as it is sent.
        self.id = 0
        self.done = False
        self._value: Any = None
        self._error: SandcellError | None = None
        self._notify: list[Callable[[], object]] = []
        self._pending = threading.Lock()
        self._pending.acquire()

    def finish(self, value: Any = None, error: SandcellError | None = None) -> None:
        """Sets the outcome. The first one counts."""
        if self.done:
            return
        self._value = value
        self._error = error
        self.done = True
        try:
            self._pending.release()
        except RuntimeError:  # Two threads finished it at the same time: the first has released it.
            return
        for notify in self._notify:
            notify()

    def wait(self, seconds: float) -> bool:
        """Waits in this thread; returns whether the call is finished."""
        if not self.done and self._pending.acquire(timeout=max(0.0, min(seconds, 1e6))):
            self._pending.release()
        return self.done

    def on_done(self, notify: Callable[[], object]) -> None:
        """Calls ``notify`` once or twice when the call is finished, in whatever thread finishes it."""
        self._notify.append(notify)
        if self.done:
            notify()

    def result(self) -> Any:
        """Returns the value of a finished call, or raises its error."""
        if self._error is not None:
            raise self._error
        return self._value


class Channel(Protocol):
    """A connection to a server."""

    def start(self, method: str, params: dict[str, Any], call: Call | None = None) -> Call:
        """Sends a request. Returns at once.

        A caller that an exception may strike meanwhile hands in the call, so that it can give up what was sent.
        """

    def cancel(self, call: Call) -> None:
        """Gives a request up and tells the server. Returns at once."""

    def rest(self, rest_call: RestCall, call: Call) -> bool:
        """Starts a REST call. Returns False, or finishes the call with None, where the server has no REST calls."""

    def post(self, method: str, params: dict[str, Any]) -> None:
        """Sends a request whose answer nobody waits for. Returns at once and never raises."""

    def check(self) -> None:
        """Raises if the sandboxes of this channel cannot be reached from this process."""


def encode(number: int, method: str, params: dict[str, Any], version: str) -> bytes:
    """Returns a request as one line of JSON, without the line's end."""
    import json

    about = {
        "io.modelcontextprotocol/protocolVersion": PROTOCOL,
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "sandcell-python", "version": version},
    }
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": {**params, "_meta": about}}
    try:
        # A part of a file takes the encoder for ASCII a sixth of the time. What it had to escape is encoded again.
        text = json.dumps(message, allow_nan=False, separators=(",", ":"))
        if "\\u" in text:
            text = json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        data = text.encode()
    except UnicodeEncodeError as error:
        found = ascii(error.object[error.start : error.start + 1])
        raise InvalidArgumentError(
            f"the text holds the lone surrogate {found}, which is no Unicode character",
            "remove it, or pass bytes; text.encode('utf-8', 'replace') replaces all of them",
        ) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"an argument cannot be sent: {error}", "pass text, numbers, lists and dicts") from None
    if len(data) > MAX_REQUEST:
        raise LimitReachedError(
            f"the request has {len(data):,} bytes; at most {MAX_REQUEST:,} can be sent",
            "write large data with files.write, which sends it in parts, and let the code read the file",
        )
    return data
