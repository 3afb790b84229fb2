"""What runs and files look like to the caller. Everything here is plain data; nothing talks to a server."""

from __future__ import annotations

import os
from typing import Any, Generic, TypeVar

from ._errors import error_for

#: Bytes of one picture or of HTML that a notebook is shown.
_MAX_SHOWN = 8 << 20


class _Record:
    """Shows its attributes, and compares by them."""

    __slots__: tuple[str, ...] = ()

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({shown})"

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]


class Cause(_Record):
    """Why a run was not ok, in the server's own words: ``code``, ``message``, ``remedy``."""

    __slots__ = ("code", "message", "remedy")

    def __init__(self, code: str, message: str, remedy: str) -> None:
        self.code = code
        self.message = message
        self.remedy = remedy


class RunError(_Record):
    """The exception that the code raised. The code can forge all of it.

    ``name`` is the class (``ZeroDivisionError``), ``value`` its message, ``traceback`` a short traceback.
    """

    __slots__ = ("name", "traceback", "value")

    def __init__(self, name: str, value: str, traceback: str) -> None:
        self.name = name
        self.value = value
        self.traceback = traceback

    def __str__(self) -> str:
        return self.traceback or f"{self.name}: {self.value}"


class Image(_Record):
    """A picture that the code showed: a plot, or an object with a picture of itself."""

    __slots__ = ("data", "mime")

    def __init__(self, data: bytes, mime: str) -> None:
        self.data = data
        self.mime = mime

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the picture to a file of this machine."""
        with open(path, "wb") as file:
            file.write(self.data)

    def __repr__(self) -> str:
        return f"<Image {self.mime}, {len(self.data):,} bytes>"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return {self.mime: _base64(self.data), "text/plain": repr(self)}


class Artifact(_Record):
    """A file that outlives the sandbox: an output, or a picture in full size. ``fetch`` of the sandbox reads it."""

    __slots__ = ("mime", "name", "size", "uri")

    def __init__(self, name: str, mime: str, size: int, uri: str) -> None:
        self.name = name
        self.mime = mime
        self.size = size
        self.uri = uri


class FileInfo(_Record):
    """An entry of a folder. ``type`` is ``file``, ``folder``, ``link`` or ``other``, ``size`` is in bytes."""

    __slots__ = ("modified", "name", "size", "target", "type")

    def __init__(self, name: str, type: str, size: int, modified: str, target: str | None) -> None:
        self.name = name
        self.type = type
        self.size = size
        self.modified = modified
        self.target = target


class FileList(list[FileInfo]):
    """The entries of a folder. ``more`` is the number of entries that were left out because the folder is large."""

    more: int = 0


class HistoryRecord(_Record):
    """A past execution: what ran, when, and how it ended."""

    __slots__ = (
        "code_preview",
        "duration_ms",
        "error",
        "execution_id",
        "language",
        "sandbox_id",
        "status",
        "stdout_preview",
        "timestamp",
    )

    def __init__(self, data: dict[str, Any]) -> None:
        self.execution_id = str(data.get("execution_id", ""))
        self.sandbox_id = str(data.get("sandbox_id") or "")
        self.language = str(data.get("language", ""))
        self.status = str(data.get("status", ""))
        self.timestamp = str(data.get("timestamp", ""))
        self.duration_ms = int(data.get("duration_ms", 0))
        self.code_preview = str(data.get("code_preview", ""))
        self.stdout_preview = str(data.get("stdout_preview", ""))
        error = data.get("error")
        self.error: str | None = None if error is None else str(error)


class _Frozen(_Record):
    """A record that cannot be changed."""

    __slots__ = ()

    def _fill(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a {type(self).__name__} cannot be changed")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a {type(self).__name__} cannot be changed")

    def __setstate__(self, state: tuple[None, dict[str, Any]]) -> None:
        self._fill(state[1])


class Checkpoint(_Frozen):
    """A kept state of a sandbox: the variables of its sessions, and its files. ``rewind`` of the sandbox brings it back.

    Its name identifies it: if another checkpoint has replaced it under this name, ``rewind`` brings back that one.
    """

    __slots__ = (
        "automatic",
        "created",
        "execution_id",
        "executions",
        "file_bytes",
        "files",
        "memory_bytes",
        "name",
        "sessions",
    )

    #: Its name. No two checkpoints of a sandbox have the same one.
    name: str
    #: Whether the server made it by itself, in a pause after an execution.
    automatic: bool
    #: When it was made, such as ``2026-01-31T12:00:00Z``.
    created: str
    #: The number of executions before it, without undone ones.
    executions: int
    #: The id of the last of them, or None.
    execution_id: str | None
    #: Its sessions, by language, such as ``python``.
    sessions: tuple[str, ...]
    #: The number of files and folders.
    files: int
    #: The size of the files.
    file_bytes: int
    #: The memory that dropping it would free. The server measures it each time a checkpoint is made by request.
    memory_bytes: int

    def __init__(self, data: dict[str, Any]) -> None:
        execution = data.get("execution_id")
        values = {
            "name": _text(data, "name"),
            "automatic": data.get("automatic") is True,
            "created": _text(data, "created_at"),
            "executions": int(_number(data, "executions")),
            "execution_id": execution if isinstance(execution, str) else None,
            "sessions": _texts(data, "sessions"),
            "files": int(_number(data, "files")),
            "file_bytes": int(_number(data, "file_bytes")),
            "memory_bytes": int(_number(data, "memory_bytes")),
        }
        self._fill(values)


class Rewind(_Frozen):
    """What the return to a checkpoint has changed."""

    __slots__ = ("checkpoint", "ended", "files_changed", "kept", "undone")

    #: The checkpoint whose state the sandbox has now.
    checkpoint: Checkpoint
    #: The sessions that ended because the checkpoint does not have them.
    ended: tuple[str, ...]
    #: The number of files and folders that were written or removed.
    files_changed: int
    #: False if the checkpoint cannot be used again, because processes or memory were too short to copy a session.
    kept: bool
    #: The number of executions that were undone.
    undone: int

    def __init__(self, data: dict[str, Any]) -> None:
        values = {
            "checkpoint": Checkpoint(data["checkpoint"]),
            "ended": _texts(data, "ended"),
            "files_changed": int(_number(data, "files_changed")),
            "kept": data.get("kept") is True,
            "undone": int(_number(data, "undone")),
        }
        self._fill(values)


class Saved(_Frozen):
    """A state of a sandbox on the disk of the server. ``Sandbox(saved=…)`` goes on from it, also after a restart."""

    __slots__ = ("created", "executions", "name", "packages", "readable", "sandbox_id", "sessions", "size")

    #: Its name.
    name: str
    #: When it was saved, such as ``2026-01-31T12:00:00Z``.
    created: str
    #: The sandbox that was saved.
    sandbox_id: str
    #: The number of executions before it, without undone ones.
    executions: int
    #: Its session, such as ``python``; empty if it has files only.
    sessions: tuple[str, ...]
    #: The packages of the sandbox, such as ``numpy 2.4.0``.
    packages: tuple[str, ...]
    #: Its size on the disk, in bytes.
    size: int
    #: False if its files are damaged, or of another version of sandcell. Then only the name and the time are known.
    readable: bool

    def __init__(self, data: dict[str, Any]) -> None:
        values = {
            "name": _text(data, "name"),
            "readable": data.get("readable") is not False,
            "created": _text(data, "created_at"),
            "sandbox_id": _text(data, "sandbox_id"),
            "executions": int(_number(data, "executions")),
            "sessions": _texts(data, "sessions"),
            "packages": _texts(data, "packages"),
            "size": int(_number(data, "bytes")),
        }
        self._fill(values)


class FileChange(_Frozen):
    """A file or folder that differs from a checkpoint, or from the host's."""

    __slots__ = ("change", "diff", "path", "size", "size_before")

    #: Its absolute path inside the sandbox.
    path: str
    #: ``created``, ``modified`` or ``removed``.
    change: str
    #: Its size now, in bytes; 0 for removed ones, folders and links.
    size: int
    #: Its size in the checkpoint or on the host, in bytes.
    size_before: int
    #: The changed lines as a unified diff; None if it is no text, or a file of more than 256 KiB.
    diff: str | None

    def __init__(self, data: dict[str, Any]) -> None:
        diff = data.get("diff")
        values = {
            "path": _text(data, "path"),
            "change": _text(data, "kind"),
            "size": int(_number(data, "bytes")),
            "size_before": int(_number(data, "bytes_before")),
            "diff": diff if isinstance(diff, str) else None,
        }
        self._fill(values)


class FileChanges(list[FileChange]):
    """The files and folders that differ from a checkpoint or from the host's, by path.

    ``more`` is the number of those left out.
    """

    more: int = 0


class VariableChange(_Frozen):
    """A variable that code has changed. Changes inside large values are not noticed."""

    __slots__ = ("change", "name", "preview", "shape", "size", "type")

    #: Its name.
    name: str
    #: ``created``, ``modified`` or ``removed``.
    change: str
    #: The class of its value.
    type: str
    #: Its length, or its dimensions such as ``100x3``; empty if unknown.
    shape: str
    #: Its memory in bytes, without the objects that it refers to; 0 if unknown.
    size: int
    #: The beginning of its text, for plain values only.
    preview: str

    def __init__(self, change: str, data: dict[str, Any]) -> None:
        values = {
            "name": _text(data, "name"),
            "change": change,
            "type": _text(data, "type"),
            "shape": _text(data, "shape"),
            "size": int(_number(data, "bytes")),
            "preview": _text(data, "preview"),
        }
        self._fill(values)


class Run:
    """How a piece of code ran.

    ``status`` is ``ok``, ``error``, ``timeout``, ``cancelled`` or ``killed``. A program that fails is a result, not an
    exception; :meth:`check` makes one of it.
    """

    __slots__ = (
        "_raw",
        "artifacts",
        "cause",
        "cpu_ms",
        "duration_ms",
        "error",
        "execution_id",
        "exit_code",
        "files",
        "html",
        "images",
        "language",
        "peak_memory_mb",
        "result",
        "sandbox_id",
        "state_lost",
        "status",
        "stderr",
        "stdout",
        "text",
        "truncated",
    )

    #: The whole of it as a model reads it: output, value and error in one text, cut to the server's inline limit.
    text: str
    #: What the code wrote to its standard output; bytes that are no UTF-8 become U+FFFD.
    stdout: str
    #: What the code wrote to its standard error.
    stderr: str
    #: The last expression's value as text, or None.
    result: str | None
    #: Pictures, at most four, at most 1,568 pixels wide and high; ``artifacts`` has them in full size.
    images: list[Image]
    #: The last value's HTML, or None. It comes from the code: show it only where scripts cannot run.
    html: str | None
    #: Files that outlive the sandbox.
    artifacts: list[Artifact]
    #: The contents of the files named in ``outputs``; a file that the code did not write is missing.
    files: dict[str, bytes]
    #: The exception that the code raised, or None.
    error: RunError | None
    #: Why the run was not ok, or None.
    cause: Cause | None
    #: Whether variables of earlier runs are gone.
    state_lost: bool
    #: Whether ``stdout``, ``stderr`` or ``result`` is not complete.
    truncated: bool

    def __init__(self, answer: dict[str, Any]) -> None:
        facts = execution_of(answer)
        self._raw = facts
        self.execution_id = _text(facts, "execution_id")
        self.sandbox_id = _text(facts, "sandbox_id")
        self.language = _text(facts, "language")
        self.status = _text(facts, "status")
        code = facts.get("exit_code")
        self.exit_code: int | None = code if isinstance(code, int) else None
        self.duration_ms = _number(facts, "duration_ms")
        self.cpu_ms = _number(facts, "cpu_ms")
        self.peak_memory_mb = _number(facts, "peak_memory_mb")
        self.stdout = _text(facts, "stdout")
        self.stderr = _text(facts, "stderr")
        value = facts.get("result")
        self.result = value if isinstance(value, str) else None
        self.state_lost = facts.get("state_lost") is True
        self.truncated = False
        self.html = None
        self.files = {}
        self.error = _error(facts.get("error"))
        self.cause = _cause(facts.get("cause"))
        self._read_blocks(answer)

    def _read_blocks(self, answer: dict[str, Any]) -> None:
        blocks = [block for block in _list(answer, "content") if isinstance(block, dict)]
        texts = [_text(block, "text") for block in blocks if block.get("type") == "text"]
        self.text = texts[0] if len(texts) > 1 else ""
        self.images = [
            Image(unbase64(_text(block, "data")), _text(block, "mimeType"))
            for block in blocks
            if block.get("type") == "image"
        ]
        self.artifacts = [
            Artifact(_text(block, "name"), _text(block, "mimeType"), int(_number(block, "size")), _text(block, "uri"))
            for block in blocks
            if block.get("type") == "resource_link"
        ]

    @property
    def ok(self) -> bool:
        """Whether the code ended well."""
        return self.status == "ok"

    def check(self) -> Run:
        """Returns the run itself if it was ok, else raises the exception for its cause (``CodeFailedError``, …)."""
        if self.ok:
            return self
        cause = self.cause or Cause("code_failed", f"the run ended with status {self.status}", "look at run.stderr")
        error = error_for(cause.code, cause.message, cause.remedy)
        error.run = self
        raise error

    def to_dict(self) -> dict[str, Any]:
        """Returns the server's own object of the execution: every fact, as ``sandcell run --json`` prints it."""
        return dict(self._raw)

    def __repr__(self) -> str:
        shown = f"<Run {self.status}, {self.duration_ms:g} ms"
        if self.cause is not None:
            shown += f", {self.cause.code}: {self.cause.message}"
        return shown + ">"

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        """Returns what a notebook shows. Nothing that the code wrote can run scripts in the notebook's page."""
        from html import escape

        parts = []
        if self.stdout:
            parts.append(f"<pre>{escape(_shorten(self.stdout))}</pre>")
        if self.stderr:
            parts.append(f'<pre style="background:#fdd;color:#000">{escape(_shorten(self.stderr))}</pre>')
        for image in self.images:
            parts.append(f'<img src="data:{escape(image.mime, quote=True)};base64,{_base64(image.data)}">')
        if self.html is not None and len(self.html) <= _MAX_SHOWN:
            page = escape(self.html, quote=True)
            parts.append(f'<iframe sandbox="" srcdoc="{page}" style="border:0;width:100%;height:20em"></iframe>')
        elif self.result is not None:
            parts.append(f"<pre>{escape(_shorten(self.result))}</pre>")
        if self.error is not None:
            parts.append(f'<pre style="color:#b00">{escape(_shorten(str(self.error)))}</pre>')
        if self.cause is not None:
            parts.append(
                f"<p><b>{escape(self.cause.code)}</b>: {escape(self.cause.message)}<br>{escape(self.cause.remedy)}</p>"
            )
        return "".join(parts) or f"<pre>{escape(repr(self))}</pre>"


S = TypeVar("S")


class Alternative(Generic[S]):
    """A piece of code that ran in a branch, and what it changed there."""

    __slots__ = ("files", "run", "sandbox", "variables")

    #: How the code ran, with its output, time and memory.
    run: Run
    #: The files that the code has changed; empty if it ended its sandbox.
    files: FileChanges
    #: The variables that the code has changed; empty if it ended its sandbox.
    variables: tuple[VariableChange, ...]
    #: The branch, to look closer. It ends with the alternatives.
    sandbox: S

    def __init__(self, run: Run, files: FileChanges, variables: tuple[VariableChange, ...], sandbox: S) -> None:
        self.run = run
        self.files = files
        self.variables = variables
        self.sandbox = sandbox

    def __repr__(self) -> str:
        return f"<Alternative {self.run!r}, {len(self.variables)} variables and {len(self.files)} files changed>"


def execution_of(answer: dict[str, Any]) -> dict[str, Any]:
    """Returns the object that the server writes about an execution."""
    return about(answer, "sandcell/execution")


def about(answer: dict[str, Any], name: str) -> dict[str, Any]:
    """Returns an object of the answer's ``_meta``; empty when there is none."""
    meta = answer.get("_meta")
    found = meta.get(name) if isinstance(meta, dict) else None
    return found if isinstance(found, dict) else {}


def unbase64(text: str) -> bytes:
    """Returns the bytes of base64 text."""
    from binascii import a2b_base64

    return a2b_base64(text)


def _base64(data: bytes) -> str:
    from binascii import b2a_base64

    return b2a_base64(data, newline=False).decode("ascii")


def _shorten(text: str, most: int = 100_000) -> str:
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}\n[{len(text) - most:,} characters are not shown]\n{text[-most // 2 :]}"


def _text(data: dict[str, Any], name: str) -> str:
    value = data.get(name)
    return value if isinstance(value, str) else ""


def _number(data: dict[str, Any], name: str) -> float:
    value = data.get(name)
    return value if isinstance(value, (int, float)) else 0


def _list(data: dict[str, Any], name: str) -> list[Any]:
    value = data.get(name)
    return value if isinstance(value, list) else []


def _texts(data: dict[str, Any], name: str) -> tuple[str, ...]:
    return tuple(str(value) for value in _list(data, name))


def _error(value: Any) -> RunError | None:
    if not isinstance(value, dict):
        return None
    return RunError(_text(value, "name"), _text(value, "value"), _text(value, "traceback"))


def _cause(value: Any) -> Cause | None:
    if not isinstance(value, dict):
        return None
    return Cause(_text(value, "code"), _text(value, "message"), _text(value, "remedy"))
