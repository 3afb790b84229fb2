"""Commands, written once for both interfaces: programs that run next to the sessions of a sandbox.

The operations are generators as those of ``_operations``.
"""

from __future__ import annotations

import time
from binascii import b2a_base64
from collections.abc import Sequence
from typing import Any

from . import _check, _operations
from ._call import Call
from ._errors import (
    BusyError,
    DeniedByPolicyError,
    ExpiredError,
    InvalidArgumentError,
    NotFoundError,
    TimedOutError,
)
from ._operations import (
    Core,
    Operation,
    accepted,
    call_tool,
    cancel_started,
    execute,
    finish_run,
    given,
    listener,
)
from ._results import Run, execution_of

#: Seconds that a background command may run when its caller does not say: the most that the server allows.
_LONGEST = 3600.0
#: Seconds that one call waits for a program to read its input, and the pause after one that it did not read.
_TAKE, _PAUSE = 1.0, 0.02
#: Bytes of output that a run of a background command has of each stream.
MAX_OUTPUT = 1 << 20


def command(
    core: Core,
    words: Any,
    cwd: Any,
    env: Any,
    stdin: Any,
    timeout: Any,
    on_stdout: Any,
    on_stderr: Any,
    max_output: Any,
) -> Operation[Run]:
    """Runs a command to its end."""
    limit = core.timeout if timeout is None else _check.seconds("timeout", timeout)
    arguments = _arguments(words, cwd, env, limit)
    data = b"" if stdin is None else _check.data("stdin", stdin)
    most = _check.count("max_output", max_output) or 0
    listeners = listener("on_stdout", on_stdout), listener("on_stderr", on_stderr)
    arguments["sandbox_id"] = yield from core.open()
    channel = core.channel
    if data:
        arguments["stdin_base64"] = _base64(data[: _operations._CHUNK])
    feed = None
    if len(data) > _operations._CHUNK:
        arguments["keep_stdin"] = True
        feed = _Feed(core, data, _operations._CHUNK)
    answer = yield from execute(channel, "run_command", given(arguments), limit, *listeners, feed)
    return (yield from finish_run(channel, answer, most))


def start(core: Core, words: Any, cwd: Any, env: Any, timeout: Any) -> Operation[Program]:
    """Starts a command and returns at once."""
    limit = _LONGEST if timeout is None else _check.seconds("timeout", timeout)
    arguments = {**_arguments(words, cwd, env, limit), "keep_stdin": True, "wait_s": 0}
    arguments["sandbox_id"] = yield from core.open()
    call = Call()
    try:
        core.channel.start("tools/call", {"name": "run_command", "arguments": given(arguments)}, call)
        if not (yield call, _operations._ANSWER_TIMEOUT):
            raise TimedOutError("the server did not answer run_command in time", "try again; it may be busy")
        return Program(core, accepted(call.result()))
    except BaseException:
        channel = core.channel
        call.on_done(lambda: cancel_started(call, channel))
        raise


def remove(core: Core, path: Any) -> Operation[None]:
    """Removes a file, or a folder with all that is in it."""
    import posixpath

    target = posixpath.join(_operations._HOME, _check.path("path", path))
    run = yield from command(core, ["rm", "-r", "--", target], "/", None, None, 60.0, None, None, _operations._CHUNK)
    if run.exit_code == 1 and run.status == "error":
        if not (yield from core.exists(target)):
            raise NotFoundError(f"{target} does not exist", "files.list shows what is there")
        raise DeniedByPolicyError(f"{target} cannot be removed: {run.stderr.strip()[-500:]}", "check where it lies")
    run.check()


class Program:
    """A command in the background."""

    def __init__(self, core: Core, answer: dict[str, Any]) -> None:
        self._core = core
        self.id = str(execution_of(answer).get("execution_id", ""))
        self._last = answer

    def write(self, data: Any) -> Operation[None]:
        """Writes to the standard input, in parts. Waits for the program to read."""
        feed = _Feed(self._core, _check.data("data", data), 0, closes=False)
        while (yield from feed(self.id, raises=True)):
            pass

    def close_stdin(self) -> Operation[None]:
        """Ends the standard input."""
        try:
            yield from self._call("write_stdin", {"close": True})
        except ExpiredError:
            pass  # The program has ended, and its input with it.

    def wait(self, timeout: Any) -> Operation[Run]:
        """Waits for the end."""
        limit = None if timeout is None else _check.seconds("timeout", timeout)
        deadline = None if limit is None else time.monotonic() + limit
        while self._is_running:
            wait = _operations._WAIT if deadline is None else max(0.0, min(_operations._WAIT, deadline - time.monotonic()))
            yield from self._look(wait)
            if self._is_running and deadline is not None and time.monotonic() >= deadline:
                raise TimedOutError(
                    f"the command did not end within {limit:g} s; it runs on", "wait longer, or end it with kill()"
                )
        return (yield from finish_run(self._core.channel, self._last, MAX_OUTPUT))

    def kill(self) -> Operation[None]:
        """Ends the program and its process group, and waits until it is over."""
        if self._is_running:
            self._last = yield from self._call("cancel_execution", {})

    def running(self) -> Operation[bool]:
        """Looks whether it runs."""
        if self._is_running:
            yield from self._look(0.0)
        return self._is_running

    @property
    def _is_running(self) -> bool:
        return execution_of(self._last).get("status") == "running"

    def _look(self, wait: float) -> Operation[None]:
        self._last = yield from self._call("get_execution", {"wait_s": wait}, wait)

    def _call(self, tool: str, arguments: dict[str, Any], wait: float = 0.0) -> Operation[dict[str, Any]]:
        # The server answers for executions of closed sandboxes, too.
        self._core.channel.check()
        seconds = wait + _operations._ANSWER_TIMEOUT
        return (yield from call_tool(self._core.channel, tool, {"execution_id": self.id, **arguments}, seconds))


class _Feed:
    """Sends data to the standard input of an execution, part by part."""

    def __init__(self, core: Core, data: bytes, sent: int, closes: bool = True) -> None:
        self._core = core
        self._data = memoryview(data)
        self._sent = sent
        self._closes = closes

    def __call__(self, execution: str, raises: bool = False) -> Operation[bool]:
        """Offers the next part once; returns whether there is more to send."""
        end = min(self._sent + _operations._CHUNK, len(self._data))
        is_last = end == len(self._data)
        arguments: dict[str, Any] = {"execution_id": execution, "wait_s": _TAKE}
        if end > self._sent:
            arguments["data_base64"] = _base64(self._data[self._sent : end])
        elif not self._closes:
            return False
        if is_last and self._closes:
            arguments["close"] = True
        try:
            yield from call_tool(self._core.channel, "write_stdin", arguments, _TAKE + _operations._ANSWER_TIMEOUT)
        except BusyError:
            yield Call(), _PAUSE
            return True
        except (ExpiredError, InvalidArgumentError):
            # It has ended, or closed its input: what it did not read is of no use.
            if raises:
                raise
            return False
        self._sent = end
        return not is_last


def _arguments(words: Any, cwd: Any, env: Any, limit: float) -> dict[str, Any]:
    """Returns the arguments of run_command that every way of running one has."""
    return {
        **_words(words),
        "cwd": None if cwd is None else _check.path("cwd", cwd),
        "env": None if env is None else _check.text_map("env", env) or None,
        "timeout_s": limit,
    }


def _words(words: Any) -> dict[str, Any]:
    if isinstance(words, str):
        if not words.strip():
            raise InvalidArgumentError("command is empty", 'pass a line for the shell, such as "ls -l"')
        return {"command": words}
    if not isinstance(words, Sequence) or isinstance(words, (bytes, bytearray, memoryview)) or not words:
        raise InvalidArgumentError(
            f"command must be a str or a list of str, not {type(words).__name__}",
            'pass a line for the shell, such as "ls -l", or a program with its arguments, such as ["ls", "-l"]',
        )
    return {"argv": _check.texts("command", words)}


def _base64(data: Any) -> str:
    return b2a_base64(data, newline=False).decode("ascii")
