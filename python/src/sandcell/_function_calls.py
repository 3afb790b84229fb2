"""Takes calls of functions from a server, and returns the results.

One thread keeps an exchange (a request ``exchange_tool_calls``) waiting at the server. Each exchange delivers the results
that are ready, and is answered with the next calls. Functions run in other threads. The result of a quick function
travels with the exchange that follows its call. A result that is ready while an exchange waits travels with another one
that does not wait.

The threads refer neither to the sandbox nor, between two calls, to its functions: both are collected when the program
forgets them, which ends the threads. They are daemons: the interpreter does not wait for them.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, Union

from ._call import EXCHANGE, Call, Channel
from ._errors import BackendUnavailableError, SandcellError, TimedOutError
from ._functions import MAX_VALUE_BYTES
from ._operations import accepted, structured

if TYPE_CHECKING:
    from ._functions import FunctionSet

_log = logging.getLogger("sandcell")

#: Functions of one sandbox that run at once; further ones wait.
_MAX_THREADS = 16
#: Seconds that an exchange waits at the server, and that its answer may take beyond that.
_WAIT = 50.0
_ANSWER_TIMEOUT = 60.0
#: Seconds that the next exchange waits here for the result of a quick function.
_QUICK = 0.002
#: Exchanges at once that only deliver results.
_MAX_DELIVERIES = 4
#: Seconds between attempts when exchanges fail, and until the thread gives up.
_MIN_DELAY, _MAX_DELAY = 0.05, 5.0
_GIVE_UP = 600.0
#: Bytes of results from which on a refused exchange may have been too large; a server takes 1 MiB at least.
_LARGE = 512 << 10
#: Failures that can pass, and those that mean the end of the sandbox. After any other one nobody serves the calls.
_PASSING = ("busy", "backend_unavailable", "timeout", "limit_reached", "internal")
_SANDBOX_ENDED = ("not_found", "expired", "session_lost")

_NOT_SERVED = "nobody serves the calls of functions from sandbox %s any more: %s"


class _Result(NamedTuple):
    id: Any
    body: dict[str, Any]
    size: int


class _Job(NamedTuple):
    id: Any
    name: str
    arguments: dict[str, Any]


#: An exchange that is answered, a result that is ready, or None: the end.
_Event = Union[Call, _Result, None]


class FunctionCalls:
    """The thread that serves the calls of one sandbox."""

    def __init__(self, functions: FunctionSet, channel: Channel, sandbox: str) -> None:
        self._functions = weakref.ref(functions)
        self._channel = channel
        self._sandbox = sandbox
        self._pid = os.getpid()
        # The collector may put the end into it at any moment, which a SimpleQueue allows.
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        # Everything below belongs to the thread.
        self._waiting: Call | None = None
        #: The exchanges without an answer: the results that they carry, and when to give them up.
        self._sent: dict[Call, tuple[list[_Result], float]] = {}
        self._ready: deque[_Result] = deque()
        self._ended = False
        self._running = 0
        self._threads = 0
        self._received = False
        self._not_before = 0.0
        self._delay = 0.0
        self._failing_since: float | None = None

    def start(self) -> None:
        """Starts the thread."""
        try:
            threading.Thread(target=self._serve, name="sandcell-functions", daemon=True).start()
        except RuntimeError as error:
            raise BackendUnavailableError(f"no thread can be started: {error}", "end some threads, then try again") from None

    def stop(self) -> None:
        """Ends the thread, soon. Returns at once; may be called at any moment, in any thread."""
        if self._pid == os.getpid():  # The thread of a parent is not in its fork.
            self._events.put(None)

    # Everything below runs in the thread.

    def _serve(self) -> None:
        try:
            self._loop()
        except Exception as error:
            _log.warning(_NOT_SERVED, self._sandbox, error, exc_info=True)
        finally:
            for call in self._sent:
                self._channel.cancel(call)
            for _ in range(self._threads):
                self._jobs.put(None)

    def _loop(self) -> None:
        while not self._ended:
            self._send()
            self._take_next(self._pause())
            if self._received:
                self._received = False
                self._take_next(_QUICK)
            while not self._ended and not self._events.empty():
                self._take(self._events.get())

    def _pause(self) -> float:
        """Returns the seconds until something must be done."""
        now = time.monotonic()
        until = min((deadline for _, deadline in self._sent.values()), default=now + _MAX_DELAY)
        if self._not_before > now:
            until = min(until, self._not_before)
        return max(0.0, until - now)

    def _take_next(self, seconds: float) -> None:
        try:
            event = self._events.get(timeout=seconds)
        except queue.Empty:
            self._give_up_late()
        else:
            self._take(event)

    def _take(self, event: _Event) -> None:
        if event is None:
            self._ended = True
        elif isinstance(event, Call):
            self._answered(event)
        else:
            self._running -= 1
            self._ready.append(event)

    def _send(self) -> None:
        """Sends what is ready, and keeps one exchange waiting."""
        if time.monotonic() < self._not_before:
            return
        if self._waiting is None:
            self._waiting = self._exchange(_WAIT)
        while self._waiting is not None and self._ready and len(self._sent) <= _MAX_DELIVERIES:
            if self._exchange(0.0) is None:
                return

    def _exchange(self, wait: float) -> Call | None:
        """Sends an exchange with results; returns None if it cannot be sent."""
        results: list[_Result] = []
        size = 0
        while self._ready and (not results or size + self._ready[0].size <= MAX_VALUE_BYTES):
            results.append(self._ready.popleft())
            size += results[-1].size
        listed = [{"id": result.id, **result.body} for result in results]
        arguments = {"sandbox_id": self._sandbox, "results": listed, "wait_s": wait}
        call = Call()
        try:
            self._channel.start("tools/call", {"name": EXCHANGE, "arguments": arguments}, call)
        except SandcellError as error:
            self._failed(error, results)
            return None
        self._sent[call] = results, time.monotonic() + wait + _ANSWER_TIMEOUT
        events = self._events
        call.on_done(lambda: events.put(call))
        return call

    def _answered(self, call: Call) -> None:
        results, _ = self._sent.pop(call, (None, 0.0))
        if results is None:
            return  # A call notifies once or twice.
        if call is self._waiting:
            self._waiting = None
        try:
            calls = structured(accepted(call.result())).get("calls")
        except SandcellError as error:
            self._failed(error, results)
            return
        self._failing_since, self._delay = None, 0.0
        for each in calls if isinstance(calls, list) else ():
            self._received = True
            self._submit(_Job(each.get("id"), str(each.get("name")), each.get("arguments") or {}))

    def _give_up_late(self) -> None:
        """Gives up exchanges whose answer is late."""
        now = time.monotonic()
        for call in [call for call, (_, deadline) in self._sent.items() if deadline <= now]:
            results, _ = self._sent.pop(call)
            if call is self._waiting:
                self._waiting = None
            self._channel.cancel(call)
            self._failed(TimedOutError(f"the server did not answer {EXCHANGE} in time"), results)

    def _failed(self, error: SandcellError, results: list[_Result]) -> None:
        """Prepares another attempt to deliver results, or ends."""
        if error.code not in _PASSING:
            if error.code not in _SANDBOX_ENDED:
                _log.warning(_NOT_SERVED, self._sandbox, error)
            self._ended = True
            return
        if error.code == "limit_reached" and sum(result.size for result in results) > _LARGE:
            refusal = f"ValueError: the value cannot be sent: {error.message}"
            results = [_Result(result.id, {"error": refusal}, len(refusal)) for result in results]
        self._ready.extendleft(reversed(results))
        now = time.monotonic()
        self._failing_since = self._failing_since or now
        if now - self._failing_since > _GIVE_UP:
            _log.warning(_NOT_SERVED, self._sandbox, error)
            self._ended = True
        self._delay = min(_MAX_DELAY, max(_MIN_DELAY, 2 * self._delay))
        self._not_before = now + self._delay

    def _submit(self, job: _Job) -> None:
        self._running += 1
        if self._threads < min(self._running, _MAX_THREADS):
            try:
                threading.Thread(target=self._work, name="sandcell-function", daemon=True).start()
                self._threads += 1
            except RuntimeError as error:
                if self._threads == 0:
                    self._running -= 1
                    self._ready.append(_Result(job.id, {"error": f"RuntimeError: {error}"}, 100))
                    return
        self._jobs.put(job)

    # Everything below runs in the threads of the functions.

    def _work(self) -> None:
        while self._carry_out(self._jobs.get()):
            pass

    def _carry_out(self, job: _Job | None) -> bool:
        if job is None:
            return False
        functions = self._functions()
        if functions is None:
            return True  # The sandbox is forgotten, and so is this call.
        body, size = functions.call(job.name, job.arguments)
        self._events.put(_Result(job.id, body, size))
        return True
