"""Gives a deep agent a shell and files in a sandbox.

>>> from deepagents import create_deep_agent
>>> from sandcell.deepagents import SandcellSandbox
>>> with SandcellSandbox(memory_mb=1024) as backend:
...     agent = create_deep_agent(model, backend=backend)
...     agent.invoke({"messages": [{"role": "user", "content": "…"}]})

deepagents is imported here, and nowhere else in the package. Tested with deepagents 0.7.32.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox

from . import _async, _commands, _sync
from ._errors import DeniedByPolicyError, InvalidArgumentError, NotFoundError, SandcellError
from ._operations import Core, Operation
from ._results import Run
from ._sync import Sandbox

#: Bytes of a command's output that are returned; the agent moves longer output to files on its own.
_MAX_OUTPUT_BYTES = 1 << 20
#: Bytes of a file that is downloaded.
_MAX_FILE_BYTES = 256 << 20
#: Exit codes of commands that the sandbox ended, as `timeout` and the shell report them.
_EXIT_CODE_TIMEOUT, _EXIT_CODE_KILLED = 124, 137


class SandcellSandbox(BaseSandbox):  # type: ignore[misc]
    """A backend of deepagents whose commands and files are in a sandbox.

    ``sandbox`` is used and not closed by :meth:`close`; without it, one is made from ``options``, the arguments of
    ``Sandbox``, with 120 seconds for each command. Paths are absolute: ``/home/user`` and ``/tmp`` are writable.
    """

    def __init__(self, sandbox: Sandbox | None = None, **options: Any) -> None:
        if sandbox is not None and options:
            raise InvalidArgumentError("sandbox and its options are both given", "pass the options to Sandbox")
        self._owns_sandbox = sandbox is None
        self.sandbox = (Sandbox(**{"timeout": 120.0, **options}) if sandbox is None else sandbox).open()

    @property
    def id(self) -> str:
        """The id of the sandbox."""
        return str(self.sandbox.id)

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Runs a command in a Bash of its own; stderr is in the output, in the order in which it was written.

        A command that takes longer than ``timeout`` seconds has exit code 124, one that a limit ended 137.
        """
        return _sync.drive(_execute(self.sandbox._core, command, timeout))

    async def aexecute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """As :meth:`execute`; cancelling the task ends the command."""
        return await _async.drive(_execute(self.sandbox._core, command, timeout))

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Writes files and makes their folders."""
        return _sync.drive(_upload(self.sandbox._core, files))

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """As :meth:`upload_files`."""
        return await _async.drive(_upload(self.sandbox._core, files))

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Reads files of at most 256 MiB each."""
        return _sync.drive(_download(self.sandbox._core, paths))

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """As :meth:`download_files`."""
        return await _async.drive(_download(self.sandbox._core, paths))

    def close(self) -> None:
        """Ends the sandbox, unless it was given to the constructor."""
        if self._owns_sandbox:
            self.sandbox.close()

    def __enter__(self) -> SandcellSandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _execute(core: Core, command: str, timeout: int | None) -> Operation[ExecuteResponse]:
    try:
        run = yield from _commands.command(
            core, f"exec 2>&1; {command}", None, None, None, timeout, None, None, _MAX_OUTPUT_BYTES
        )
    except InvalidArgumentError as error:
        # The model chose the command and the timeout, so the model is told.
        return ExecuteResponse(output=str(error), exit_code=2)
    return ExecuteResponse(output=_output(run), exit_code=_exit_code(run), truncated=run.truncated)


def _output(run: Run) -> str:
    parts = [run.stdout, run.stderr]
    if run.status == "timeout":
        parts.append("The command took too long and was ended. Run it with a larger timeout, at most 3600 seconds.")
    elif run.cause is not None and run.status != "error":
        parts.append(f"{run.cause.message}\n{run.cause.remedy}")
    return "\n".join(part for part in parts if part)


def _exit_code(run: Run) -> int:
    if run.exit_code is not None:
        return run.exit_code
    return _EXIT_CODE_TIMEOUT if run.status == "timeout" else _EXIT_CODE_KILLED


def _upload(core: Core, files: list[tuple[str, bytes]]) -> Operation[list[FileUploadResponse]]:
    answers = []
    for path, content in files:
        error = None
        try:
            _check_absolute(path)
            yield from core.write(path, content, False)
        except SandcellError as failure:
            error = _file_error(failure)
        answers.append(FileUploadResponse(path=path, error=error))
    return answers


def _download(core: Core, paths: list[str]) -> Operation[list[FileDownloadResponse]]:
    answers = []
    for path in paths:
        content, error = None, None
        try:
            _check_absolute(path)
            content = yield from core.read(path, _MAX_FILE_BYTES)
        except SandcellError as failure:
            error = _file_error(failure)
        answers.append(FileDownloadResponse(path=path, content=content, error=error))
    return answers


def _check_absolute(path: str) -> None:
    if not path.startswith("/"):
        raise InvalidArgumentError(f"{path} is not an absolute path", "start it with /home/user/")


def _file_error(error: SandcellError) -> str:
    """Returns deepagents' word for an error, or the error's own text where it has none."""
    if isinstance(error, NotFoundError):
        return "file_not_found"
    if isinstance(error, DeniedByPolicyError):
        return "permission_denied"
    if isinstance(error, InvalidArgumentError):
        return "is_directory" if error.message.endswith(" is a folder") else "invalid_path"
    return str(error)
