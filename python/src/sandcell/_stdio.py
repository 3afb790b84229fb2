"""The server of this process: ``sandcell serve``, started at first use, spoken to over its standard streams.

One thread does all reading and writing. Callers only hand bytes to it, so an exception that strikes a caller
(``KeyboardInterrupt``) cannot leave half a message behind. The server ends when its standard input is closed, which
the kernel does however this process ends. A fork closes its copies and starts a server of its own at first use.
"""

from __future__ import annotations

import atexit
import itertools
import os
import select
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from ._call import MAX_ANSWER, Call, encode
from ._errors import (
    BackendUnavailableError,
    BusyError,
    InternalError,
    SandcellError,
    SessionLostError,
    error_for,
)
from ._version import VERSION

if TYPE_CHECKING:
    import socket
    import subprocess
    from collections.abc import Mapping

    from ._parent import ParentPool
    from ._pool import RestCall

#: Seconds that the server has to end after its standard input is closed; then it is killed.
_END_TIMEOUT = 5.0
#: Bytes of the server's standard error that are kept for messages.
_LOG_KEPT = 8 << 10
#: Bytes that are read at once.
_CHUNK = 1 << 20
#: Requests under way at once; the server itself refuses more than 256.
_MAX_PENDING = 4096
#: Cancelled requests that are remembered until their answer: most of them never get one.
_MAX_CANCELLED = 256
#: One process is one caller, so it may have as many sandboxes as the whole server, unless somebody has set the limit.
_CALLER_LIMIT = "SANDCELL_LIMITS__SANDBOXES_PER_CALLER"
_CALLER_LIMIT_DEFAULT = "256"


class LocalServer:
    """A running ``sandcell serve`` and the thread that speaks to it."""

    def __init__(self, program: str, arguments: tuple[str, ...], environment: Mapping[str, str]) -> None:
        import socket
        import subprocess

        self._pid = os.getpid()
        self._numbers = itertools.count(1)
        self._calls: dict[int, Call] = {}
        self._cancelled: dict[int, Call] = {}
        self._outgoing: deque[bytes] = deque()
        self._log = b""
        self._answered = False
        self._closing = False
        self._death: SandcellError | None = None
        # Re-entrant: the collector may close a forgotten sandbox while its thread holds the lock.
        self._wake_lock = threading.RLock()
        self._pool: ParentPool | None = None
        self._control: socket.socket | None = None
        inherited: socket.socket | None = None
        if sys.platform == "linux":
            self._control, inherited = socket.socketpair()
            arguments = ("--parent-socket", str(inherited.fileno()), *arguments)
        try:
            # A session of its own: Ctrl-C in the terminal is for this process, which then cancels what runs.
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                [program, "serve", "--toolset", "sandbox", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=dict(environment),
                start_new_session=True,
                pass_fds=[inherited.fileno()] if inherited is not None else [],
            )
        except (OSError, ValueError) as error:
            self._close_control()
            raise BackendUnavailableError(
                f"{program} cannot be started: {error}", "set SANDCELL_BIN to the path of the sandcell program"
            ) from None
        finally:
            if inherited is not None:
                inherited.close()
        streams = (self._process.stdin, self._process.stdout, self._process.stderr)
        self._input, self._output, self._errors = (stream.fileno() for stream in streams if stream is not None)
        os.set_blocking(self._input, False)
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._woken, False)
        self._thread = threading.Thread(target=self._serve, name="sandcell", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self._process.kill()
            self._process.wait()
            self._close_descriptors()
            raise BackendUnavailableError(f"no thread can be started: {error}", "end some threads, then try again") from None

    @property
    def usable(self) -> bool:
        """Whether new sandboxes can be made here, by this process."""
        return self._death is None and not self._closing and self._pid == os.getpid()

    def check(self) -> None:
        """Raises if the server is gone, or belongs to the process that this one was forked from."""
        if self._pid != os.getpid():
            raise SessionLostError(
                "this sandbox belongs to the process that this one was forked from",
                "make a new Sandbox in this process",
            )
        if self._death is not None:
            raise self._death.copy()
        if self._closing:
            raise _ended()

    def start(self, method: str, params: dict[str, Any], call: Call | None = None) -> Call:
        self.check()
        if len(self._calls) >= _MAX_PENDING:
            raise BusyError(f"{_MAX_PENDING} requests are under way", "wait for some of them first")
        call = call or Call()
        call.id = next(self._numbers)
        data = encode(call.id, method, params, VERSION)
        self._calls[call.id] = call
        self._send(data)
        if self._death is not None:
            # It died between the check and now; nobody else may finish this call.
            self._calls.pop(call.id, None)
            call.finish(error=self._death.copy())
        return call

    def rest(self, rest_call: RestCall, call: Call) -> bool:
        self.check()
        if self._pool is None:
            if self._control is None:
                return False
            from ._parent import ParentPool

            self._pool = ParentPool(self._control)
        return self._pool.start(rest_call, call)

    def cancel(self, call: Call) -> None:
        if self._pool is not None and call.id == 0:
            self._pool.cancel(call)
            return
        if self._calls.pop(call.id, None) is None or not self.usable:
            return
        # The server may have answered already, and what it has started is then known by that answer alone.
        self._cancelled[call.id] = call
        if len(self._cancelled) > _MAX_CANCELLED:
            self._cancelled.pop(next(iter(self._cancelled)), None)
        note = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}' % call.id
        self._send(note)

    def post(self, method: str, params: dict[str, Any]) -> None:
        if not self.usable:
            return
        try:
            self._send(encode(next(self._numbers), method, params, VERSION))
        except SandcellError:
            return

    def close(self) -> None:
        """Ends the server and waits for it, 5 s at most; then the server is killed."""
        if self._pid != os.getpid() or threading.current_thread() is self._thread:
            return
        self._closing = True
        self._notify()
        self._thread.join(3 * _END_TIMEOUT + 1)

    def forget(self) -> None:
        """Closes this process's copies of the descriptors. For a fork: the server belongs to the parent."""
        self._death = SessionLostError("the server belongs to the parent process", "make a new Sandbox")
        self._close_descriptors()
        # The parent waits for its child; here it only has to be silent about a child that it cannot wait for.
        self._process.returncode = 0

    def _send(self, data: bytes) -> None:
        self._outgoing.append(data + b"\n")
        self._notify()

    def _notify(self) -> None:
        # Under a lock, or the byte could land in a stranger's file that was given the number of the closed descriptor.
        with self._wake_lock:
            if self._wake >= 0:
                try:
                    os.write(self._wake, b"\0")
                except OSError:  # Full: the thread is awake. Closed behind our back: nobody can be woken.
                    pass

    def _close_control(self) -> None:
        if self._pool is not None:
            self._pool.close()
        if self._control is not None:
            try:
                self._control.close()
            except OSError:  # Somebody has closed its number.
                pass

    def _close_descriptors(self) -> None:
        self._close_control()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    pass
        wake, self._wake = self._wake, -1
        for descriptor in (wake, self._woken):
            try:
                os.close(descriptor)
            except OSError:
                pass

    # Everything below runs in the thread.

    def _serve(self) -> None:
        reason = "its output was closed"
        try:
            reason = self._loop()
        except Exception as error:  # A fault of ours must end all waits like a dead server does.
            reason = f"{type(error).__name__}: {error}"
        finally:
            self._finish(reason)

    def _loop(self) -> str:
        poll = select.poll()
        for descriptor in (self._output, self._errors, self._woken):
            poll.register(descriptor, select.POLLIN)
        lines = _Lines()
        waiting = memoryview(b"")
        input_open = True
        wants_room = False
        deadline: float | None = None
        while True:
            if self._closing and input_open:
                self._close_input()
                input_open = False
                deadline = time.monotonic() + _END_TIMEOUT
                if wants_room:
                    poll.unregister(self._input)
                    wants_room = False
            timeout = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
            if timeout == 0.0:
                self._process.kill()
                return "it did not end in time"
            for descriptor, event in poll.poll(timeout):
                if descriptor == self._output:
                    data = os.read(descriptor, _CHUNK)
                    if not data:
                        return "it ended"
                    for line in lines.feed(data):
                        self._dispatch(line)
                elif descriptor == self._errors:
                    if not self._read_log():
                        poll.unregister(descriptor)
                elif descriptor == self._woken:
                    os.read(descriptor, 4096)
                elif event & (select.POLLERR | select.POLLHUP):
                    poll.unregister(descriptor)
                    wants_room = input_open = False
            if input_open:
                waiting = self._write(waiting)
                if bool(waiting) != wants_room:
                    wants_room = not wants_room
                    if wants_room:
                        poll.register(self._input, select.POLLOUT)
                    else:
                        poll.unregister(self._input)

    def _write(self, waiting: memoryview) -> memoryview:
        """Writes what the pipe takes, and returns what it does not take."""
        while True:
            if not waiting:
                if not self._outgoing:
                    return waiting
                waiting = memoryview(self._outgoing.popleft())
            try:
                waiting = waiting[os.write(self._input, waiting) :]
            except BlockingIOError:
                return waiting
            except OSError:  # The server closed its input; the end of its output says the rest.
                self._outgoing.clear()
                return memoryview(b"")

    def _close_input(self) -> None:
        if self._process.stdin is not None:
            try:
                self._process.stdin.close()
            except OSError:
                pass

    def _read_log(self) -> bool:
        data = os.read(self._errors, _CHUNK)
        self._log = (self._log + data)[-_LOG_KEPT:]
        return bool(data)

    def _dispatch(self, line: bytes) -> None:
        import json

        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            raise InternalError("it wrote a line that is no JSON") from None
        if not isinstance(message, dict) or "method" in message:
            return
        number = message.get("id")
        if not isinstance(number, int):
            return
        call = self._calls.pop(number, None) or self._cancelled.pop(number, None)
        self._answered = True
        if call is not None:
            value, error = outcome_of(message)
            call.finish(value, error)

    def _finish(self, reason: str) -> None:
        status = self._reap()
        self._death = _ended() if self._closing else self._cause_of_death(reason, status)
        with self._wake_lock:
            self._close_descriptors()
        while self._calls:
            try:
                _, call = self._calls.popitem()
            except KeyError:
                break
            call.finish(error=self._death.copy())
        self._outgoing.clear()
        self._cancelled.clear()

    def _reap(self) -> int | None:
        """Waits for the server's end; kills it if it does not end."""
        self._close_input()
        try:
            return self._process.wait(_END_TIMEOUT)
        except Exception:
            self._process.kill()
        try:
            return self._process.wait(_END_TIMEOUT)
        except Exception:
            return None

    def _cause_of_death(self, reason: str, status: int | None) -> SandcellError:
        try:
            os.set_blocking(self._errors, False)
            self._read_log()
        except OSError:
            pass
        log = self._log.decode("utf-8", "replace").strip()
        said = f"; it wrote: {log[-2000:]}" if log else ""
        if self._answered:
            return SessionLostError(
                f"the sandcell server ended (exit status {status}, {reason}), and all sandboxes with it{said}",
                "make a new Sandbox: it starts a new server",
            )
        return BackendUnavailableError(
            f"the sandcell server did not start (exit status {status}, {reason}){said}",
            "run `sandcell doctor`; it says what is missing on this machine",
        )


class _Lines:
    """Cuts a stream of bytes into lines, within a bound."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        start = len(self._rest)
        self._rest += data
        if b"\n" not in data:
            if start + len(data) > MAX_ANSWER:
                raise InternalError(f"it wrote a line of more than {MAX_ANSWER:,} bytes")
            return []
        *lines, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        return [line for line in lines if line]


def outcome_of(message: dict[str, Any]) -> tuple[Any, SandcellError | None]:
    """Returns the result of a JSON-RPC answer, or the error that it holds."""
    error = message.get("error")
    if error is None:
        return message.get("result"), None
    text = error.get("message") if isinstance(error, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    # Unknown tools and bad parameters; this package sends neither unless the server offers fewer tools.
    kind = "invalid_argument" if code in (-32601, -32602) else "internal"
    remedy = "check that package and program have the same version"
    return None, error_for(kind, f"the server refused the request: {text}", remedy)


def _ended() -> SandcellError:
    return SessionLostError("the server of this process was ended", "make a new Sandbox: it starts a new server")


def find_program() -> str:
    """Returns the path of the program: ``SANDCELL_BIN``, where pip installs programs, then PATH."""
    named = os.environ.get("SANDCELL_BIN")
    if named:
        if _is_program(named):
            return named
        raise BackendUnavailableError(
            f"SANDCELL_BIN names {named}, which is no program", "set it to the path of the sandcell program"
        )
    packages = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    places = [
        os.path.join(packages, "bin"),  # pip install --target
        os.path.normpath(os.path.join(packages, "..", "..", "..", "bin")),  # environments
        os.path.dirname(sys.executable or ""),
        *os.get_exec_path(),
    ]
    for place in places:
        path = os.path.join(place, "sandcell")
        if os.path.isabs(path) and _is_program(path):
            return path
    raise BackendUnavailableError(
        "the program sandcell is not installed here",
        "put sandcell on PATH (`cargo install --path crates/sandcell`), or set SANDCELL_BIN to its path",
    )


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    environment = {**os.environ, **extra}
    environment.pop("SANDCELL_BIN", None)  # The program refuses variables that are no settings of its own.
    if _CALLER_LIMIT not in environment and not _is_set_by_file("sandboxes_per_caller"):
        environment[_CALLER_LIMIT] = _CALLER_LIMIT_DEFAULT
    return environment


def _is_set_by_file(setting: str) -> bool:
    """Whether a file of settings has the word: a limit that somebody chose is not overridden."""
    own = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    for path in ("/etc/sandcell/config.toml", os.path.join(own, "sandcell", "config.toml"), ".env"):
        try:
            with open(path, "rb") as file:
                if setting.encode() in file.read(1 << 20).lower():
                    return True
        except OSError:
            continue
    return False


class _Local:
    """The server of this process, if one runs. Made again in a fork."""

    def __init__(self) -> None:
        # Re-entrant: a signal handler may fork while its thread starts a server.
        self.lock = threading.RLock()
        self.server: LocalServer | None = None
        self.arguments: tuple[str, ...] = ()
        self.environment: dict[str, str] = {}


_local = _Local()


def local_server() -> LocalServer:
    """Returns the server of this process; starts it at first use, and again after it died."""
    server = _local.server
    if server is not None and server.usable:
        return server
    with _local.lock:
        server = _local.server
        if server is None or not server.usable:
            if not hasattr(select, "poll"):
                raise BackendUnavailableError(
                    "sandboxes of this machine need Linux or macOS", 'use a service: Sandbox(url="https://…", token="…")'
                )
            server = LocalServer(find_program(), _local.arguments, _environment(_local.environment))
            _local.server = server
        return server


def configure(*arguments: str, env: Mapping[str, str] | None = None, python: str | os.PathLike[str] | None = None) -> None:
    """Sets what the server of this process is started with: arguments of ``sandcell serve``, and settings.

    >>> sandcell.configure("--mount", "/data:/data", env={"SANDCELL_NETWORK__ALLOW": "pypi.org"})

    ``python`` is the interpreter that sandboxes run, a path; ``python=sys.executable`` shows them the packages of this
    program's environment, read-only. Without it they run the first ``python3`` of PATH.

    It is called before the first use; a server that runs already keeps its settings, so that raises ``BusyError``.
    Arguments of a wrong type raise ``InvalidArgumentError``.
    """
    from ._check import path, text, text_map

    words = tuple(text("arguments", word) for word in arguments)
    settings = text_map("env", env or {})
    if python is not None:
        settings["SANDCELL_PYTHON"] = os.path.abspath(path("python", python))
    with _local.lock:
        if _local.server is not None and _local.server.usable:
            raise BusyError("the server of this process runs already", "call configure before the first use of a sandbox")
        _local.arguments = words
        _local.environment = settings


def shutdown() -> None:
    """Ends the server of this process with all its sandboxes. The next use starts a new one."""
    with _local.lock:
        server, _local.server = _local.server, None
    if server is not None:
        server.close()


def _after_fork() -> None:
    server = _local.server
    _local.lock = threading.RLock()
    _local.server = None
    if server is not None:
        server.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _local.lock.acquire(),
        after_in_parent=lambda: _local.lock.release(),
        after_in_child=_after_fork,
    )
atexit.register(shutdown)
