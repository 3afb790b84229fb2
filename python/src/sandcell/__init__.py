"""Runs code that nobody has vetted, in sandboxes of this machine or of a service.

>>> import sandcell
>>> sandcell.run("print(1)").stdout
'1\\n'

>>> from sandcell import Sandbox
>>> with Sandbox() as sandbox:
...     sandbox.files.write("data.csv", "a,b\\n1,2\\n")
...     sandbox.run("rows = open('data.csv').read().split()").check()
...     sandbox.run("len(rows)").result
'2'

``AsyncSandbox`` has the same methods for asyncio. A program that fails is a result (``run.error``, ``run.cause``);
a call that cannot be done raises a ``SandcellError`` with ``code``, ``message`` and ``remedy``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._errors import (
    BackendUnavailableError,
    BusyError,
    CheckpointUnavailableError,
    CodeFailedError,
    CodeRejectedError,
    CrashedError,
    DeniedByPolicyError,
    DiskFullError,
    ExecutionCancelledError,
    ExpiredError,
    ImageUnavailableError,
    InternalError,
    InvalidArgumentError,
    IsolationUnavailableError,
    LanguageUnavailableError,
    LimitReachedError,
    NetworkDeniedError,
    NotFoundError,
    OutOfMemoryError,
    OutputLimitError,
    PackageFailedError,
    PackageNotAllowedError,
    ProcessLimitError,
    SandcellError,
    SessionLostError,
    TimedOutError,
    ToolDeniedError,
    ToolFailedError,
    ToolUnavailableError,
    UnauthorizedError,
)
from ._results import (
    Alternative,
    Artifact,
    Cause,
    Checkpoint,
    FileChange,
    FileChanges,
    FileInfo,
    FileList,
    HistoryRecord,
    Image,
    Rewind,
    Run,
    RunError,
    Saved,
    VariableChange,
)
from ._stdio import configure, shutdown
from ._sync import Alternatives, Files, Process, Sandbox, drop_saved, run, saved
from ._version import VERSION as __version__

if TYPE_CHECKING:
    from ._async import AsyncAlternatives, AsyncFiles, AsyncProcess, AsyncSandbox, run_async

__all__ = [
    "Alternative",
    "Alternatives",
    "Artifact",
    "AsyncAlternatives",
    "AsyncFiles",
    "AsyncProcess",
    "AsyncSandbox",
    "BackendUnavailableError",
    "BusyError",
    "Cause",
    "Checkpoint",
    "CheckpointUnavailableError",
    "CodeFailedError",
    "CodeRejectedError",
    "CrashedError",
    "DeniedByPolicyError",
    "DiskFullError",
    "ExecutionCancelledError",
    "ExpiredError",
    "FileChange",
    "FileChanges",
    "FileInfo",
    "FileList",
    "Files",
    "HistoryRecord",
    "Image",
    "ImageUnavailableError",
    "InternalError",
    "InvalidArgumentError",
    "IsolationUnavailableError",
    "LanguageUnavailableError",
    "LimitReachedError",
    "NetworkDeniedError",
    "NotFoundError",
    "OutOfMemoryError",
    "OutputLimitError",
    "PackageFailedError",
    "PackageNotAllowedError",
    "Process",
    "ProcessLimitError",
    "Rewind",
    "Run",
    "RunError",
    "Sandbox",
    "SandcellError",
    "Saved",
    "SessionLostError",
    "TimedOutError",
    "ToolDeniedError",
    "ToolFailedError",
    "ToolUnavailableError",
    "UnauthorizedError",
    "VariableChange",
    "__version__",
    "configure",
    "drop_saved",
    "run",
    "run_async",
    "saved",
    "shutdown",
]

_ASYNC = ("AsyncAlternatives", "AsyncFiles", "AsyncProcess", "AsyncSandbox", "run_async")


def __getattr__(name: str) -> Any:
    # asyncio takes longer to import than the rest of the package; only its users pay for it.
    if name in _ASYNC:
        from . import _async

        return getattr(_async, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
