"""Exceptions: each carries a code, a message and a remedy, as every failure of sandcell does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._results import Run


class SandcellError(Exception):
    """A call that could not be done as asked.

    ``code`` is for programs, ``message`` says what happened, ``remedy`` says what to do next. Each code has a subclass.
    ``run`` is the run that failed when :meth:`sandcell.Run.check` raised the error, else None.
    """

    code: str = "internal"

    def __init__(self, message: str, remedy: str = "", code: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        self.message = message
        self.remedy = remedy
        self.run: Run | None = None

    def __str__(self) -> str:
        text = f"{self.code}: {self.message}"
        return f"{text}\nWhat to do: {self.remedy}" if self.remedy else text

    def copy(self) -> SandcellError:
        """Returns an equal error that was not raised yet: one that several calls end with is raised by each of them."""
        return type(self)(self.message, self.remedy, self.code)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.message, self.remedy, self.code))


class InvalidArgumentError(SandcellError):
    """An argument has the wrong type or value."""

    code = "invalid_argument"


class NotFoundError(SandcellError):
    """There is no such file, sandbox, execution or checkpoint."""

    code = "not_found"


class ExpiredError(SandcellError):
    """The sandbox was closed, or ended because nobody used it."""

    code = "expired"


class UnauthorizedError(SandcellError):
    """The service does not accept the token."""

    code = "unauthorized"


class DeniedByPolicyError(SandcellError):
    """The operator's settings do not allow it."""

    code = "denied_by_policy"


class CodeRejectedError(SandcellError):
    """The static analysis rejected the code; it did not run."""

    code = "code_rejected"


class LimitReachedError(SandcellError):
    """A limit of the caller or of the server is reached."""

    code = "limit_reached"


class BackendUnavailableError(SandcellError):
    """No server or back end can be used: the program is missing, did not start, or the service cannot be reached."""

    code = "backend_unavailable"


class IsolationUnavailableError(SandcellError):
    """This machine cannot isolate as strongly as the settings demand."""

    code = "isolation_unavailable"


class LanguageUnavailableError(SandcellError):
    """The language is not installed where the sandboxes run."""

    code = "language_unavailable"


class ImageUnavailableError(SandcellError):
    """The container image cannot be had."""

    code = "image_unavailable"


class CodeFailedError(SandcellError):
    """The code raised an exception or ended with an exit code other than 0."""

    code = "code_failed"


class CrashedError(SandcellError):
    """The interpreter crashed."""

    code = "crashed"


class TimedOutError(SandcellError):
    """The code ran too long, or the server did not answer in time."""

    code = "timeout"


class OutOfMemoryError(SandcellError):
    """The code used more memory than the sandbox may have."""

    code = "out_of_memory"


class ProcessLimitError(SandcellError):
    """The code started more processes than the sandbox may have."""

    code = "process_limit"


class DiskFullError(SandcellError):
    """The files of the sandbox are as large as they may get."""

    code = "disk_full"


class OutputLimitError(SandcellError):
    """There is more data than one call may hold."""

    code = "output_limit"


class ExecutionCancelledError(SandcellError):
    """The run was cancelled."""

    code = "cancelled"


class SessionLostError(SandcellError):
    """The session, or the server that held the sandbox, is gone with its variables and files."""

    code = "session_lost"


class CheckpointUnavailableError(SandcellError):
    """The state of the sandbox cannot be kept now, for example because a session has threads. Nothing was changed."""

    code = "checkpoint_unavailable"


class PackageNotAllowedError(SandcellError):
    """The operator's settings do not allow the package."""

    code = "package_not_allowed"


class PackageFailedError(SandcellError):
    """The package could not be installed."""

    code = "package_failed"


class NetworkDeniedError(SandcellError):
    """The network, or a host on it, is not allowed."""

    code = "network_denied"


class ToolDeniedError(SandcellError):
    """A call of a tool of the host is not allowed."""

    code = "tool_denied"


class ToolFailedError(SandcellError):
    """A tool of the host reported an error."""

    code = "tool_failed"


class ToolUnavailableError(SandcellError):
    """A server of tools cannot be used."""

    code = "tool_unavailable"


class BusyError(SandcellError):
    """The server has too much to do, or code runs in the sandbox; try again later."""

    code = "busy"


class InternalError(SandcellError):
    """A fault of sandcell itself."""

    code = "internal"


#: The class of each code.
ERRORS: dict[str, type[SandcellError]] = {kind.code: kind for kind in SandcellError.__subclasses__()}


def error_for(code: str, message: str, remedy: str) -> SandcellError:
    """Returns the exception for a code; one without a class of its own is a plain :class:`SandcellError`."""
    return ERRORS.get(code, SandcellError)(message, remedy, code)
