"""What sandboxes do, written once for both interfaces.

Each operation is a generator. It starts calls, and yields only to wait: ``(call, seconds)`` asks for "wait for this
call, at most so long" and is answered with whether the call is finished; an awaitable asks to await it. ``_sync`` does
so in a thread, ``_async`` in an event loop. An exception that strikes a wait is raised inside the generator, which
then ends the code that it started.
"""

from __future__ import annotations

import copy
import os
import posixpath
import time
from collections.abc import Awaitable, Callable, Generator
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Optional, TypeVar, Union

from . import _check
from ._call import Call, Channel
from ._errors import (
    BackendUnavailableError,
    BusyError,
    DeniedByPolicyError,
    ExpiredError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    OutputLimitError,
    SandcellError,
    SessionLostError,
    TimedOutError,
    error_for,
)
from ._results import Artifact, FileInfo, FileList, HistoryRecord, Run, Saved, about, execution_of, unbase64

if TYPE_CHECKING:
    from ._functions import FunctionSet

T = TypeVar("T")
Effect = Union[tuple[Call, float], Awaitable[object]]
Operation = Generator[Effect, Any, T]
Listener = Optional[Callable[[str], object]]
Feed = Optional[Callable[[str], "Operation[bool]"]]

#: Seconds that one call waits for code; the server allows 55.
_WAIT = 50.0
#: Seconds that the server may take for everything else in a call.
_ANSWER_TIMEOUT = 60.0
#: Seconds for images to be pulled and packages to be installed.
_PREPARE_TIMEOUT = 900.0
#: Seconds beyond its own time limit that code may wait for its turn and for packages.
_QUEUE_TIMEOUT = 600.0
#: Seconds between two looks at the output of running code; more when nothing comes.
_POLL_MIN, _POLL_MAX = 0.02, 0.25
#: Bytes of a file that one call carries. The limit of a call can be set as low as 1 MiB.
_CHUNK = 1 << 20
#: Bytes of a stream that one call of MCP reads, and one of REST.
_PART = 20_000
_MAX_PART = 1 << 20
#: Bytes of HTML that are fetched for a notebook.
_MAX_HTML = 1 << 20
_MAKER_WITH_FUNCTIONS = "create_sandbox_with_functions"
_VERSIONS = "check that package and program have the same version"
_HOME = "/home/user"
#: Exit code of the script about a file, when there is none.
_MISSING = 44
#: Exit codes that tell what is to be downloaded.
_IS_FOLDER, _IS_PROGRAM = 45, 46


def call_tool(channel: Channel, name: str, arguments: dict[str, Any], seconds: float) -> Operation[dict[str, Any]]:
    """Calls a tool and returns its answer; a refusal is raised."""
    answer = yield from request(channel, "tools/call", {"name": name, "arguments": arguments}, seconds)
    return accepted(answer)


def accepted(answer: Any) -> dict[str, Any]:
    """Returns the answer of a tool, unless it is a refusal: that is raised."""
    if not isinstance(answer, dict):
        raise InternalError("the server answered without a result", _VERSIONS)
    if answer.get("isError"):
        failure = about(answer, "sandcell/error")
        raise error_for(
            str(failure.get("code", "internal")),
            str(failure.get("message", "the server refused the call and gave no reason")),
            str(failure.get("remedy", _VERSIONS)),
        )
    return answer


def structured(answer: dict[str, Any]) -> dict[str, Any]:
    """Returns the data of an answer."""
    found = answer.get("structuredContent")
    if not isinstance(found, dict):
        raise InternalError("the server answered without data", _VERSIONS)
    return found


def request(channel: Channel, method: str, params: dict[str, Any], seconds: float) -> Operation[dict[str, Any]]:
    """Sends a request and returns its answer. Whatever ends the wait cancels the request."""
    call = Call()
    try:
        channel.start(method, params, call)
        if not (yield call, seconds):
            raise TimedOutError(f"the server did not answer {method} within {seconds:g} s", "try again; it may be busy")
    except BaseException:
        channel.cancel(call)
        raise
    answer = call.result()
    if not isinstance(answer, dict):
        raise InternalError("the server answered without a result", _VERSIONS)
    return answer


def execute(
    channel: Channel,
    tool: str,
    arguments: dict[str, Any],
    timeout: float,
    on_stdout: Listener = None,
    on_stderr: Listener = None,
    feed: Feed = None,
) -> Operation[dict[str, Any]]:
    """Runs something that can last, and returns the answer when it has ended. An exception cancels it.

    ``feed`` sends input while it runs: called with the id of the execution, it tells whether there is more to send.
    """
    follows = on_stdout is not None or on_stderr is not None
    answers_at_once = follows or feed is not None
    wait = 0.0 if answers_at_once else _WAIT
    deadline = time.monotonic() + timeout + _QUEUE_TIMEOUT
    listeners = {"stdout": _Listening(on_stdout), "stderr": _Listening(on_stderr)}
    call = Call()
    try:
        channel.start("tools/call", {"name": tool, "arguments": {**arguments, "wait_s": wait}}, call)
        if not (yield call, wait + _ANSWER_TIMEOUT):
            raise TimedOutError(f"the server did not answer {tool} in time", "try again; it may be busy")
        answer = accepted(call.result())
        execution = str(execution_of(answer).get("execution_id", ""))
        hungry = feed is not None and execution_of(answer).get("status") == "running"
        while feed is not None and hungry:
            hungry = yield from feed(execution)
            if follows:
                yield from _hear(channel, execution, listeners)
        while execution_of(answer).get("status") == "running":
            if time.monotonic() > deadline:
                raise TimedOutError("the run did not end in time", "pass a longer timeout")
            if follows:
                answer = yield from _follow(channel, execution, listeners)
            else:
                wanted = {"execution_id": execution, "wait_s": _WAIT}
                answer = yield from call_tool(channel, "get_execution", wanted, _WAIT + _ANSWER_TIMEOUT)
        if follows:
            yield from _hear(channel, execution, listeners)
        return answer
    except BaseException:
        if not answers_at_once:
            channel.cancel(call)
        # The code runs on once the server has handed out its id, so that is looked for, whenever the answer comes.
        call.on_done(lambda: cancel_started(call, channel))
        raise


def cancel_started(call: Call, channel: Channel) -> None:
    """Ends the execution that a call has started and that it did not wait for."""
    try:
        facts = execution_of(accepted(call.result()))
    except SandcellError:
        return
    if facts.get("status") == "running":
        arguments = {"execution_id": facts.get("execution_id")}
        channel.post("tools/call", {"name": "cancel_execution", "arguments": arguments})


class _Listening:
    """How far a stream of running code was handed to its listener."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.offset = 0


def _follow(channel: Channel, execution: str, listeners: dict[str, _Listening]) -> Operation[dict[str, Any]]:
    """Hands output on until the execution ends, or a wait of the server's is over. One call waits for the end meanwhile."""
    wanted = {"name": "get_execution", "arguments": {"execution_id": execution, "wait_s": _WAIT}}
    waiting = channel.start("tools/call", wanted)
    pause = _POLL_MIN
    deadline = time.monotonic() + _WAIT + _ANSWER_TIMEOUT
    try:
        while not (yield waiting, pause):
            heard = yield from _hear(channel, execution, listeners)
            pause = _POLL_MIN if heard else min(2 * pause, _POLL_MAX)
            if time.monotonic() > deadline:
                raise TimedOutError("the server did not answer get_execution in time", "try again; it may be busy")
    except BaseException:
        channel.cancel(waiting)
        raise
    return accepted(waiting.result())


def _hear(channel: Channel, execution: str, listeners: dict[str, _Listening]) -> Operation[bool]:
    """Hands on what is new, and returns whether something was."""
    heard = False
    for name, listening in listeners.items():
        while listening.listener is not None:
            part = yield from read_part(channel, execution, name, listening.offset)
            if part.next_offset == listening.offset:
                break
            listening.offset = part.next_offset
            heard = True
            said = listening.listener(part.text)
            if isinstance(said, Awaitable):
                yield said
            if part.next_offset >= part.total_bytes:
                break
    return heard


class StreamPart(NamedTuple):
    """A part of what an execution printed: the text, its end in the stream, and the bytes of the stream so far.

    ``gap`` is True if bytes before or in it were not kept: the server keeps the start and the end of very long streams.
    """

    text: str
    next_offset: int
    total_bytes: int
    gap: bool


def read_part(channel: Channel, execution: str, stream: str, offset: int, most: int = _MAX_PART) -> Operation[StreamPart]:
    """Reads a part of an execution's stream, of about ``most`` bytes at most.

    Where the server has no REST calls, the text is without escape sequences and control characters.
    """
    if stream != "result":
        exact = yield from _exact_part(channel, execution, stream, offset, most)
        if exact is not None:
            return exact
    limit = min(most, _PART)
    wanted = {"execution_id": execution, "stream": stream, "offset": offset, "limit": limit}
    answer = yield from call_tool(channel, "get_execution", wanted, _ANSWER_TIMEOUT)
    part = about(answer, "sandcell/stream")
    text, position, end = part.get("text"), part.get("next_offset"), part.get("total_bytes")
    if not isinstance(text, str) or not isinstance(position, int) or not isinstance(end, int):
        raise InternalError("the server gave no part of the stream", _VERSIONS)
    # A part that spans more than it may leaves some out.
    return StreamPart(text, position, end, position - offset > limit)


def _exact_part(channel: Channel, execution: str, stream: str, offset: int, most: int) -> Operation[StreamPart | None]:
    """Reads a part of what an execution printed, exactly; returns None where the server has no REST calls."""
    from ._pool import output_part

    call = Call()
    try:
        if not channel.rest(output_part(execution, stream, offset, most), call):
            return None
        if not (yield call, _ANSWER_TIMEOUT):
            raise TimedOutError("the server did not answer in time", "try again; it may be busy")
    except BaseException:
        channel.cancel(call)
        raise
    part = call.result()
    if part is None:
        return None
    names = ("offset", "next_offset", "total_bytes")
    start, end, total = (part.get(name) if isinstance(part, dict) else None for name in names)
    text = part.get("text") if isinstance(part, dict) else None
    if not (isinstance(start, int) and isinstance(end, int) and isinstance(total, int) and isinstance(text, str)):
        raise InternalError("the server gave no part of the stream", _VERSIONS)
    if not offset <= start <= end:
        raise InternalError("the server gave another part of the stream", _VERSIONS)
    if start > offset:
        text = f"\n[... {start - offset} bytes were not kept ...]\n{text}"
    return StreamPart(text, end, total, start > offset)


def finish_run(channel: Channel, answer: dict[str, Any], max_output: int) -> Operation[Run]:
    """Makes a run of an answer: reads what the answer had no room for, up to so many bytes of each stream."""
    run = Run(answer)
    if "stdout" not in execution_of(answer):
        raise InternalError("the server gave no output of the run", _VERSIONS)
    cut, edited = (execution_of(answer).get(key) for key in ("read_rest", "edited"))
    names = [*(cut if isinstance(cut, dict) else ()), *(edited if isinstance(edited, list) else ())]
    for name in names:
        if name in ("stdout", "stderr", "result"):
            try:
                text, complete = yield from _read_whole(channel, run.execution_id, name, max_output)
            except (ExpiredError, NotFoundError):
                # Others have printed so much meanwhile that the server has dropped it: the answer has its ends.
                text, complete = str(execution_of(answer).get(name) or ""), False
            run.truncated = run.truncated or not complete
            setattr(run, name, text)
    for name in ("stdout", "stderr", "result"):
        text = getattr(run, name)
        if text is not None and len(text) * 4 > max_output and len(data := text.encode("utf-8", "replace")) > max_output:
            setattr(run, name, data[:max_output].decode("utf-8", "ignore"))
            run.truncated = True
    for artifact in run.artifacts:
        if artifact.mime == "text/html" and artifact.size <= _MAX_HTML:
            run.html = (yield from fetch(channel, artifact)).decode("utf-8", "replace")
    return run


def _read_whole(channel: Channel, execution: str, stream: str, most: int) -> Operation[tuple[str, bool]]:
    """Reads a stream from its start; returns the text and whether that is all of it."""
    parts: list[str] = []
    offset = 0
    complete = True
    while offset < most:
        part = yield from read_part(channel, execution, stream, offset, min(_MAX_PART, most - offset))
        complete = complete and not part.gap
        parts.append(part.text)
        if part.next_offset <= offset or part.next_offset >= part.total_bytes:
            return "".join(parts), complete and part.next_offset >= part.total_bytes
        offset = part.next_offset
    return "".join(parts), False


def fetch(channel: Channel, artifact: Artifact) -> Operation[bytes]:
    """Reads a file that outlives its sandbox."""
    answer = yield from request(channel, "resources/read", {"uri": artifact.uri}, _ANSWER_TIMEOUT)
    contents = answer.get("contents")
    first = contents[0] if isinstance(contents, list) and contents else None
    if isinstance(first, dict) and isinstance(first.get("blob"), str):
        return unbase64(first["blob"])
    if isinstance(first, dict) and isinstance(first.get("text"), str):
        return str(first["text"]).encode()
    raise NotFoundError(f"{artifact.uri} has no contents", "the files of a run are kept for some time only")


def run_once(
    channel: Channel,
    code: str,
    language: str,
    packages: Any,
    files: Any,
    stdin: str | None,
    outputs: Any,
    timeout: float,
    memory_mb: int | None,
    network: Any,
    on_stdout: Listener,
    on_stderr: Listener,
    max_output: Any,
) -> Operation[Run]:
    """One run in a sandbox of its own."""
    limit = _check.seconds("timeout", timeout)
    wanted = _check.texts("outputs", outputs)
    arguments = {
        "code": _check.text("code", code),
        "language": _check.text("language", language),
        "packages": _check.texts("packages", packages) or None,
        "files": _check.text_map("files", files) or None,
        "stdin": _check.optional_text("stdin", stdin),
        "outputs": wanted or None,
        "timeout_s": limit,
        "memory_mb": _check.count("memory_mb", memory_mb),
        "network": _check.texts("network", network) or None,
    }
    most = _check.count("max_output", max_output) or 0
    listeners = listener("on_stdout", on_stdout), listener("on_stderr", on_stderr)
    answer = yield from execute(channel, "create_run_close", given(arguments), limit, *listeners)
    run = yield from finish_run(channel, answer, most)
    # The links of outputs come in the order in which they were named, without those that were not written.
    links = list(run.artifacts)
    for path in reversed(wanted):
        name = posixpath.basename(path.rstrip("/"))
        index = next((index for index in reversed(range(len(links))) if links[index].name == name), None)
        if index is not None:
            run.files[path] = yield from fetch(channel, links[index])
            del links[index:]
    return run


def given(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


def listener(name: str, value: Any) -> Listener:
    if value is None or callable(value):
        return value  # type: ignore[no-any-return]
    raise InvalidArgumentError(f"{name} must be a function, not {type(value).__name__}", "pass a function of one text")


class _Bounded:
    """Takes the rest of a file that may grow while it is read."""

    def __init__(self, path: str, take: Callable[[Any], object], most: int, size: int) -> None:
        self._path = path
        self._take = take
        self._most = most
        self._size = size

    def take(self, data: memoryview) -> None:
        self._size += len(data)
        if self._size > self._most:
            raise OutputLimitError(f"{self._path} has more than {self._most:,} bytes", "pass a larger max_bytes")
        self._take(data)


class Core:
    """A sandbox, and what can be done with it."""

    def __init__(
        self,
        *,
        packages: Any,
        env: Any,
        image: Any,
        memory_mb: Any,
        cpus: Any,
        disk_mb: Any,
        network: Any,
        lifetime: Any,
        backend: Any,
        label: Any,
        timeout: Any,
        language: Any,
        url: Any,
        token: Any,
        tools: Any,
        saved: Any,
        only_files: Any,
        in_loop: bool,
    ) -> None:
        self.id: str | None = None
        self.closed = False
        self._channel: Channel | None = None
        self._made: Call | None = None
        self._asked = 0.0
        self._openers = 0
        self._key = _fresh_key()
        self.timeout = _check.seconds("timeout", timeout)
        self.language = _check.text("language", language)
        self._url = _check.optional_text("url", url)
        self._token = _check.optional_text("token", token)
        if self._token is not None and self._url is None:
            raise InvalidArgumentError("a token without a url", "pass url, the address of the service")
        if only_files and saved is None:
            raise InvalidArgumentError("only_files without saved", "pass saved, the name of a saved state")
        options = {
            "packages": _check.texts("packages", packages) or None,
            "env": _check.text_map("env", env) or None,
            "image": _check.optional_text("image", image),
            "memory_mb": _check.count("memory_mb", memory_mb),
            "cpus": _check.positive("cpus", cpus),
            "disk_mb": _check.count("disk_mb", disk_mb),
            "network": _check.texts("network", network) or None,
            "lifetime_s": _check.positive("lifetime", lifetime),
            "backend": _check.optional_text("backend", backend),
            "label": _check.optional_text("label", label),
            "from_saved": None if saved is None else _saved_name("saved", saved),
            "only_files": True if only_files else None,
        }
        self._options = given(options)
        self._maker = "create_sandbox"
        self._functions = _functions(tools, in_loop)
        if self._functions is not None:
            self._maker = _MAKER_WITH_FUNCTIONS
            self._options["functions"] = self._functions.specifications()

    def open(self) -> Operation[str]:
        """Makes the sandbox if it is not made yet, and returns its id. Two users at once make one."""
        if self.closed:
            raise ExpiredError("this sandbox is closed", "make a new Sandbox")
        if self.id is not None:
            self.channel.check()
            self._serve_functions()
            return self.id
        if self._channel is None:
            self._channel = open_channel(self._url, self._token)
        channel = self._channel
        deadline = time.monotonic() + _PREPARE_TIMEOUT
        self._openers += 1
        try:
            while self.id is None:
                if self._made is None:
                    self._asked = time.monotonic()
                    self._made = Call()
                    wanted = {**self._options, "key": self._key, "wait_s": _WAIT}
                    channel.start("tools/call", {"name": self._maker, "arguments": wanted}, self._made)
                call = self._made
                if not (yield call, _WAIT + _ANSWER_TIMEOUT):
                    raise TimedOutError(f"the server did not answer {self._maker} in time", "try again; it may be busy")
                try:
                    self.id = str(structured(accepted(call.result()))["sandbox_id"])
                except InvalidArgumentError as error:
                    # 'there is no tool "…"'
                    if "no tool" not in error.message or _MAKER_WITH_FUNCTIONS not in error.message:
                        raise
                    raise BackendUnavailableError(
                        "the server offers no functions of programs (tools=…): it is older than this package", _VERSIONS
                    ) from None
                except BusyError:
                    if self._made is call:
                        self._made = None
                    # A server that answers so after the whole wait still makes it, and the key leads to the same one.
                    if time.monotonic() - self._asked < _WAIT or time.monotonic() > deadline:
                        raise
        except BaseException:
            if self._openers == 1:
                self._give_up()
            raise
        finally:
            self._openers -= 1
        self._serve_functions()
        return self.id

    def _serve_functions(self) -> None:
        if self._functions is not None and self.id is not None and not self.closed:
            self._functions.serve(self.channel, self.id)

    def attach(self, sandbox_id: str) -> None:
        """Uses a sandbox that was made earlier. The server decides whether this caller may, at the first use."""
        self._channel = open_channel(self._url, self._token)
        self.id = sandbox_id

    def sibling(self, sandbox_id: str) -> Core:
        """Returns another sandbox of the same caller, with the same settings for runs but without functions."""
        other = copy.copy(self)
        other.id = sandbox_id
        other.closed = False
        other._made, other._openers, other._functions = None, 0, None
        return other

    @property
    def has_functions(self) -> bool:
        """Whether code in the sandbox can call functions of this program."""
        return self._functions is not None

    def _give_up(self) -> None:
        """Nobody waits for the sandbox any more; if it is made all the same, it is closed at once."""
        call, channel = self._made, self._channel
        self._made = None
        if call is not None and channel is not None:
            # The old key leads to the sandbox that is closed here; the next use needs a new one.
            self._key = _fresh_key()
            channel.cancel(call)
            call.on_done(lambda: _close_made(call, channel))

    @property
    def channel(self) -> Channel:
        """The connection; there is one as soon as the sandbox is being made."""
        if self._channel is None:
            raise ExpiredError("this sandbox is not open", "make a new Sandbox")
        return self._channel

    def tool(self, name: str, arguments: dict[str, Any], seconds: float = _ANSWER_TIMEOUT) -> Operation[dict[str, Any]]:
        """Calls a tool on this sandbox."""
        sandbox = yield from self.open()
        return (yield from call_tool(self.channel, name, {**arguments, "sandbox_id": sandbox}, seconds))

    def run(
        self,
        code: Any,
        language: Any,
        stdin: Any,
        timeout: Any,
        on_stdout: Any,
        on_stderr: Any,
        max_output: Any,
        checkpoint: Any = None,
    ) -> Operation[Run]:
        """Runs code in the session of its language."""
        limit = self.timeout if timeout is None else _check.seconds("timeout", timeout)
        arguments = {
            "code": _check.text("code", code),
            "language": self.language if language is None else _check.text("language", language),
            "stdin": _check.optional_text("stdin", stdin),
            "timeout_s": limit,
            "checkpoint": None if checkpoint is None else _check.checkpoint_name("checkpoint", checkpoint),
        }
        most = _check.count("max_output", max_output) or 0
        listeners = listener("on_stdout", on_stdout), listener("on_stderr", on_stderr)
        arguments["sandbox_id"] = yield from self.open()
        answer = yield from execute(self.channel, "execute_code", given(arguments), limit, *listeners)
        return (yield from finish_run(self.channel, answer, most))

    def install(self, packages: tuple[Any, ...], language: Any, timeout: Any) -> Operation[Run]:
        """Makes packages importable."""
        limit = _check.seconds("timeout", timeout)
        arguments = {
            "packages": _check.texts("packages", packages),
            "language": _check.text("language", language),
            "timeout_s": limit,
            "sandbox_id": (yield from self.open()),
        }
        answer = yield from execute(self.channel, "install_package", arguments, limit)
        run = Run(answer)
        run.check()
        return run

    def reset(self, language: Any) -> Operation[None]:
        """Restarts interpreters."""
        yield from self.tool("reset_session_state", given({"language": _check.optional_text("language", language)}))

    def status(self) -> Operation[dict[str, Any]]:
        """Returns how the sandbox stands."""
        answer = yield from self.tool("get_sandbox_status", {})
        found: dict[str, Any] = structured(answer)["sandboxes"][0]
        return found

    def history(self, last_n: Any) -> Operation[list[HistoryRecord]]:
        """Returns what ran in this sandbox, the newest first."""
        answer = yield from self.tool("get_execution_history", {"last_n": _check.count("last_n", last_n) or 10})
        return [HistoryRecord(record) for record in structured(answer)["records"]]

    def fetch(self, artifact: Any) -> Operation[bytes]:
        """Reads an artifact of a run."""
        if not isinstance(artifact, Artifact):
            raise InvalidArgumentError(
                f"artifact must be an Artifact, not {type(artifact).__name__}", "pass one of run.artifacts"
            )
        if self._channel is None:
            yield from self.open()
        return (yield from fetch(self.channel, artifact))

    def close(self) -> Operation[None]:
        """Ends the sandbox. Closing twice, and closing after the server's end, does nothing."""
        self.closed = True
        if self.id is None:
            self.abandon()
            return
        try:
            yield from call_tool(self.channel, "close_sandbox", {"sandbox_id": self.id}, _ANSWER_TIMEOUT)
        except SandcellError as error:
            # Gone already, with its server or by itself: that is what was wanted.
            if error.code not in ("not_found", "expired", "session_lost", "backend_unavailable"):
                raise
        finally:
            if self._functions is not None:
                self._functions.stop()

    def abandon(self) -> None:
        """Ends the sandbox without waiting: for objects that nobody closed."""
        if self._functions is not None:
            self._functions.stop()
        channel = self._channel
        if channel is None or (self.closed and self.id is not None):
            return
        self.closed = True
        if self.id is not None:
            channel.post("tools/call", {"name": "close_sandbox", "arguments": {"sandbox_id": self.id}})
        else:
            self._give_up()

    # Files.

    def write(self, path: Any, data: Any, append: Any) -> Operation[int]:
        """Writes a file in parts."""
        target = _check.path("path", path)
        view = memoryview(_check.data("data", data))
        if len(view) > _CHUNK and (yield from self._move(target, body=view, length=len(view), append=bool(append))):
            return len(view)
        for start in range(0, max(1, len(view)), _CHUNK):
            yield from self._write_part(target, view[start : start + _CHUNK], bool(append) or start > 0)
        return len(view)

    def _write_part(self, target: str, data: bytes | memoryview, append: bool) -> Operation[None]:
        from binascii import b2a_base64

        content = b2a_base64(data, newline=False).decode("ascii")
        yield from self.tool("upload_file", {"path": target, "content_base64": content, "append": append})

    def read(self, path: Any, max_bytes: Any) -> Operation[bytes]:
        """Reads a file in parts."""
        from io import BytesIO

        # Its value is handed out without a copy.
        whole = BytesIO()
        yield from self._read_parts(_check.path("path", path), _check.count("max_bytes", max_bytes) or 0, whole.write)
        return whole.getvalue()

    def _read_parts(self, target: str, most: int, take: Callable[[Any], object]) -> Operation[None]:
        """Hands over the bytes of a file: the first part tells how many there are, and the rest moves as raw bytes."""
        size = 0
        while True:
            arguments = {"path": target, "base64": True, "offset": size, "limit": _CHUNK}
            answer = yield from self.tool("read_file", arguments)
            facts = about(answer, "sandcell/file")
            whole = facts.get("size")
            if isinstance(whole, int) and whole > most:
                raise OutputLimitError(f"{target} has {whole:,} bytes, more than {most:,}", "pass a larger max_bytes")
            part = b""
            if isinstance(whole, int) and whole > size:
                part = unbase64(answer["content"][0]["text"])
                size += len(part)
                if size > most:  # The file grows while it is read.
                    raise OutputLimitError(f"{target} has more than {most:,} bytes", "pass a larger max_bytes")
                take(part)
            if facts.get("next_offset") is None or not part:
                return
            if size == len(part):
                rest = _Bounded(target, take, most, size)
                if (yield from self._move(target, offset=size, sink=rest.take)):
                    return

    def _move(self, path: str, **options: Any) -> Operation[bool]:
        """Moves a file as raw bytes; returns whether that was possible. There is no bound but that bytes keep moving."""
        from ._pool import Transfer, move

        transfer = Transfer((yield from self.open()), path, **options)
        channel = self.channel
        call = Call()
        moved = -1
        try:
            if not channel.rest(lambda connection, rest: move(connection, rest, transfer), call):
                return False
            while not (yield call, _ANSWER_TIMEOUT):
                if transfer.moved == moved:
                    raise TimedOutError(f"no byte of {path} moved within {_ANSWER_TIMEOUT:g} s", "try again; it may be busy")
                moved = transfer.moved
            return bool(call.result())
        except (BackendUnavailableError, ExpiredError, NotFoundError, SessionLostError):
            channel.cancel(call)
            if transfer.fault is not None:
                raise transfer.fault from None
            # If the server or the sandbox has ended, this call tells why, in the words of the package.
            yield from self.tool("get_sandbox_status", {})
            raise
        except BaseException:
            channel.cancel(call)
            if transfer.fault is not None:
                raise transfer.fault from None
            raise

    def upload(self, local: Any, remote: Any) -> Operation[int]:
        """Sends a file or a folder of this machine; returns the number of files."""
        from . import _transfer

        source = _transfer.local_path("local_path", local)
        target = posixpath.join(_HOME, _check.path("remote_path", remote))
        try:
            if not os.path.isdir(source):
                with _transfer.open_regular(source, follow=True) as file:
                    executable = os.fstat(file.fileno()).st_mode & 0o100
                    yield from self._send(file, target)
                if executable:
                    yield from self._shell(f"command chmod a+x -- {_quoted(target)}", target)
                return 1
            with _transfer.spool() as archive:
                files = _transfer.pack(source, archive)
                archive.seek(0)
                packed = f"/tmp/.sandcell-{os.urandom(8).hex()}.tar"
                try:
                    yield from self._send(archive, packed)
                except BaseException:
                    if self._channel is not None:
                        self._channel.post("tools/call", _removal(self.id, packed))
                    raise
        except OSError as error:
            raise _transfer.local_error(source, error) from None
        folder = _quoted(target)
        code = f"command mkdir -p -- {folder} && command tar -xof {packed} -C {folder}"
        yield from self._shell(f"{code}; code=$?; command rm -f {packed}; exit $code", target)
        return files

    def _send(self, file: IO[bytes], target: str) -> Operation[None]:
        size = os.fstat(file.fileno()).st_size
        if size > _CHUNK and (yield from self._move(target, body=file, length=size)):
            return
        file.seek(0)
        append = False
        while (data := file.read(_CHUNK)) or not append:
            yield from self._write_part(target, data, append)
            append = True

    def download(self, remote: Any, local: Any, max_bytes: Any) -> Operation[int]:
        """Fetches a file or a folder; returns the number of files."""
        from . import _transfer

        source = posixpath.join(_HOME, _check.path("remote_path", remote))
        target = _transfer.local_path("local_path", local)
        most = _check.count("max_bytes", max_bytes) or 0
        packed = f"/tmp/.sandcell-{os.urandom(8).hex()}.tar"
        # A folder and an executable file are told by exit codes: no output has to be trusted.
        name = _quoted(source)
        pack = f"command tar -cf {packed} -C {name} . || exit 1; exit {_IS_FOLDER}"
        kinds = f"[ -d {name} ]; then {pack}; elif [ -x {name} ]; then exit {_IS_PROGRAM}; elif [ -e {name} ]; then exit 0"
        run = yield from self._shell(f"if {kinds}; else exit {_MISSING}; fi", source, (_IS_FOLDER, _IS_PROGRAM))
        try:
            if run.exit_code != _IS_FOLDER:
                with _transfer.draft(target, run.exit_code == _IS_PROGRAM) as file:
                    yield from self._read_parts(source, most, file.write)
                return 1
            with _transfer.spool() as archive:
                try:
                    # An archive has headers and is padded; the bytes of the files are counted when they are unpacked.
                    yield from self._read_parts(packed, most + most // 4 + (64 << 20), archive.write)
                except BaseException:
                    self.channel.post("tools/call", _removal(self.id, packed))
                    raise
                yield from self._shell(f"rm -f {packed}", packed)
                archive.seek(0)
                return _transfer.unpack(archive, target, most)
        except OSError as error:
            raise _transfer.local_error(target, error) from None

    def _shell(self, script: str, path: str, accepted_codes: tuple[int, ...] = ()) -> Operation[Run]:
        """Runs a script about a path; a failure is raised."""
        from . import _commands

        run = yield from _commands.command(self, script, "/", None, None, 600.0, None, None, _CHUNK)
        if run.exit_code in accepted_codes:
            return run
        if run.exit_code == _MISSING:
            raise NotFoundError(f"{path} does not exist", "files.list shows what is there")
        if run.status == "error":
            raise DeniedByPolicyError(f"{path}: {run.stderr.strip()[-500:]}", "check where it lies")
        return run.check()

    def list(self, path: Any, recursive: Any) -> Operation[FileList]:
        """Lists a folder."""
        arguments = {"path": _check.path("path", path), "recursive": bool(recursive)}
        answer = structured((yield from self.tool("list_files", arguments)))
        found = FileList(
            FileInfo(entry["name"], entry["type"], entry["size"], entry["modified"], entry.get("target"))
            for entry in answer["files"]
        )
        found.more = answer["more"]
        return found

    def exists(self, path: Any) -> Operation[bool]:
        """Looks whether there is a file or folder."""
        target = _check.path("path", path)
        try:
            yield from self.tool("list_files", {"path": target})
        except NotFoundError:
            return False
        except InvalidArgumentError:
            # It is no folder, or one of its parents is none: reading tells which.
            try:
                yield from self.tool("read_file", {"path": target, "base64": True, "limit": 1})
            except (NotFoundError, InvalidArgumentError) as error:
                return "regular" in error.message
        return True


def _quoted(path: str) -> str:
    from shlex import quote

    return quote(path)


def _saved_name(argument: str, value: Any) -> str:
    """Returns the name of a saved state, which is given as such or by its name."""
    return value.name if isinstance(value, Saved) else _check.checkpoint_name(argument, value)


def _removal(sandbox: str | None, path: str) -> dict[str, Any]:
    """Returns the call that removes a temporary file of ours."""
    return {"name": "run_command", "arguments": {"sandbox_id": sandbox, "argv": ["rm", "-f", path]}}


def _close_made(call: Call, channel: Channel) -> None:
    try:
        sandbox = call.result()["structuredContent"]["sandbox_id"]
    except (SandcellError, LookupError, TypeError):
        return
    channel.post("tools/call", {"name": "close_sandbox", "arguments": {"sandbox_id": sandbox}})


def _functions(tools: Any, in_loop: bool) -> FunctionSet | None:
    """Returns the functions that code may call; None if there are none. Only their users pay for the imports."""
    if isinstance(tools, (tuple, list, dict)) and not tools:
        return None
    from ._functions import FunctionSet

    found = FunctionSet(tools, in_loop)
    return found if found.specifications() else None


def _fresh_key() -> str:
    """Returns the key by which the server recognises a repeated creation."""
    return f"python-{os.urandom(12).hex()}"


def open_channel(url: str | None, token: str | None) -> Channel:
    """Returns the service's channel, or this process's own server."""
    if url is None:
        from ._stdio import local_server

        return local_server()
    from ._http import http_channel

    return http_channel(url, token)
