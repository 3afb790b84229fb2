"""Gives agents of Pydantic AI a sandbox: tools that run code, or a workspace for tools of your own.

>>> from pydantic_ai import Agent
>>> from sandcell.pydantic_ai import SandcellToolset, SandcellWorkspace
>>> agent = Agent(model, toolsets=[SandcellToolset(packages=["pandas"])])
>>> agent = Agent(model, capabilities=[SandcellWorkspace()])          # ctx.workspace in tools

pydantic_ai is imported here, and nowhere else in the package. Tested with pydantic-ai 2.68.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn

from pydantic_ai import BinaryImage, FunctionToolset, RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.workspaces import (
    CommandResult,
    FileEntry,
    Workspace,
    WorkspaceOutputLimitError,
    WorkspaceRef,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
)

from ._async import AsyncSandbox
from ._errors import ExpiredError, InvalidArgumentError, NotFoundError, SandcellError, SessionLostError
from ._file_errors import builtin_error
from ._results import Run

_PROVIDER = "sandcell"
#: Seconds of a command that brings no limit, the most that the server allows.
_TIMEOUT = 3600.0
#: Bytes of each stream of a command; more is an error.
_MAX_OUTPUT = 10 << 20
#: Characters of each stream that an error of a command holds.
_MAX_SHOWN = 64 << 10
#: Exit code of a program that was killed, as a shell reports it.
_KILLED_EXIT_CODE = 137


class SandcellToolset(FunctionToolset[Any]):  # type: ignore[misc]
    """Tools that run code and commands, and that read and write files. The arguments are those of ``Sandbox``.

    The sandbox is made at the first call of a tool. It keeps variables and files from run to run of the agent, until
    ``close``, or until nobody refers to the toolset any more. Plots reach the model as images.
    """

    def __init__(self, *, id: str | None = "sandcell", **options: Any) -> None:
        #: The sandbox itself.
        self.sandbox = AsyncSandbox(**options)
        tools = [self.run_code, self.run_command, self.read_file, self.write_file]
        super().__init__(tools, id=id)

    async def run_code(self, code: str) -> Any:
        """Run code in an interpreter that keeps variables. Returns output, the last value, plots and errors."""
        run = await self.sandbox.run(code)
        return [run.text, *(BinaryImage(image.data, media_type=image.mime) for image in run.images)]

    async def run_command(self, command: str) -> str:
        """Run a command line of the shell in /home/user. Returns output, exit code and errors."""
        run: Run = await self.sandbox.command(command)
        return run.text

    async def read_file(self, path: str) -> str:
        """Read a text file. Relative paths start at /home/user."""
        try:
            return await self.sandbox.files.read_text(path, errors="replace")
        except SandcellError as error:
            return str(error)

    async def write_file(self, path: str, content: str) -> str:
        """Write a text file and its parent folders. Relative paths start at /home/user."""
        try:
            return f"{await self.sandbox.files.write(path, content)} bytes were written"
        except SandcellError as error:
            return str(error)

    async def close(self) -> None:
        """Ends the sandbox."""
        await self.sandbox.close()


class _Commands:
    """A sandbox that runs commands, made by its first one."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self.sandbox = sandbox
        self._working_dir = ""

    @property
    def ref(self) -> WorkspaceRef | None:
        """The identity of the sandbox; None until it is made."""
        number = self.sandbox.id
        return None if number is None else WorkspaceRef(provider=_PROVIDER, id=number)

    async def working_dir(self) -> str:
        """Returns the folder where commands start."""
        if not self._working_dir:
            self._working_dir = (await self.run(["sh", "-c", "pwd -P"])).stdout.rstrip("\n")
        else:
            await self._guarded(self.sandbox.status(), "")
        return self._working_dir

    async def run(
        self,
        command: str | Sequence[str],
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CommandResult:
        """Runs a command to its end."""
        if isinstance(command, str) is not shell:
            raise TypeError("a string needs shell=True, and a list of words must not have it")
        words = command if isinstance(command, str) else list(command)
        limit = _TIMEOUT if timeout is None else timeout
        run: Run = await self._guarded(
            self.sandbox.command(words, env=env, timeout=limit, max_output=_MAX_OUTPUT), words[0] if words else ""
        )
        stdout, stderr = run.stdout[:_MAX_SHOWN], run.stderr[:_MAX_SHOWN]
        if run.status == "timeout":
            raise WorkspaceTimeoutError(f"the command took more than {limit:g} s", stdout=stdout, stderr=stderr)
        if run.truncated:
            message = "the command wrote too much; redirect its output to a file, and read parts of it"
            raise WorkspaceOutputLimitError(message, limit=_MAX_OUTPUT, stdout=stdout, stderr=stderr)
        if run.status in ("killed", "cancelled"):
            # The whole sandbox may have ended, and then this raises.
            await self._guarded(self.sandbox.status(), "")
        told = "" if run.cause is None or run.cause.code == "code_failed" else f"{run.cause.message}\n"
        code = _KILLED_EXIT_CODE if run.exit_code is None else run.exit_code
        return CommandResult(exit_code=code, stdout=run.stdout, stderr=run.stderr + told)

    async def _guarded(self, awaitable: Any, path: str) -> Any:
        try:
            return await awaitable
        except SandcellError as error:
            _raise_translated(error, path)


class _CommandsOnly:
    """A backend without its files, so that the framework reaches them by commands."""

    def __init__(self, backend: _Commands) -> None:
        self._backend = backend
        self.working_dir = backend.working_dir
        self.run = backend.run

    @property
    def ref(self) -> WorkspaceRef | None:
        return self._backend.ref


class SandcellWorkspaceBackend(_Commands):
    """A workspace in a sandbox. The arguments are those of ``Sandbox``, or ``sandbox`` is one that exists.

    The sandbox lives as long as somebody refers to the backend, unless it is closed before.
    """

    def __init__(self, sandbox: AsyncSandbox | None = None, **options: Any) -> None:
        super().__init__(AsyncSandbox(**options) if sandbox is None else sandbox)

    @property
    def _shell(self) -> Workspace:
        """The framework's own commands for files, where the sandbox's interface for files has less."""
        return Workspace(_CommandsOnly(self))

    async def read_bytes(self, path: str) -> bytes:
        """Reads a file of at most 256 MiB."""
        data: bytes = await self._guarded(self.sandbox.files.read(path), path)
        return data

    async def write_bytes(self, path: str, data: bytes) -> None:
        """Writes a file, making its parent folders."""
        await self._guarded(self.sandbox.files.write(path, data), path)

    async def stat(self, path: str) -> FileEntry:
        """Describes a file or a folder."""
        return await self._shell.stat(path)

    async def list_dir(self, path: str) -> Sequence[FileEntry]:
        """Lists a folder."""
        entries: Sequence[FileEntry] = await self._shell.list_dir(path)
        return entries

    async def make_dir(self, path: str) -> None:
        """Makes a folder and its parents."""
        await self._shell.make_dir(path)

    async def remove(self, path: str) -> None:
        """Removes a file, or a folder with everything in it."""
        await self._shell.remove(path)

    async def exists(self, path: str) -> bool:
        """Returns whether there is a file or a folder."""
        return bool(await self._shell.exists(path))

    async def realpath(self, path: str) -> str:
        """Returns the path without symbolic links."""
        return str(await self._shell.realpath(path))


class _GoneBackend(SandcellWorkspaceBackend):
    """A sandbox that this capability does not have any more."""

    def __init__(self, ref: WorkspaceRef) -> None:
        super().__init__()
        self._ref = ref

    @property
    def ref(self) -> WorkspaceRef | None:
        return self._ref

    async def _guarded(self, awaitable: Any, path: str) -> NoReturn:
        awaitable.close()
        raise WorkspaceUnavailableError(f"sandbox {self._ref.id} has ended; pass workspace='new' for a new one")


class SandcellWorkspace(AbstractCapability[Any]):  # type: ignore[misc]
    """Gives each conversation a sandbox as its workspace. The arguments after ``id`` are those of ``Sandbox``.

    Sandboxes live until ``close``, the end of ``async with``, or until nobody refers to this object any more, so later
    runs can continue in them by their ref.
    """

    def __init__(self, *, id: str | None = "sandcell_workspace", **options: Any) -> None:
        self.id = id
        self._options = options
        self._backends: list[SandcellWorkspaceBackend] = []

    def get_workspace(self, ctx: RunContext[Any], *, ref: WorkspaceRef | None) -> SandcellWorkspaceBackend | None:
        """Returns the backend of a ref, or a new one; None for a ref of another provider."""
        if ref is not None and ref.provider != _PROVIDER:
            return None
        if ref is None:
            self._backends = [backend for backend in self._backends if not backend.sandbox.closed]
            self._backends.append(SandcellWorkspaceBackend(**self._options))
            return self._backends[-1]
        known = next((backend.sandbox for backend in self._backends if backend.ref == ref), None)
        return _GoneBackend(ref) if known is None else SandcellWorkspaceBackend(known)

    async def close(self) -> None:
        """Ends all sandboxes."""
        while self._backends:
            await self._backends.pop().sandbox.close()

    async def __aenter__(self) -> SandcellWorkspace:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def _raise_translated(error: SandcellError, path: str) -> NoReturn:
    if isinstance(error, (ExpiredError, NotFoundError, SessionLostError)) and not error.message.endswith(" does not exist"):
        raise WorkspaceUnavailableError(str(error)) from error
    translated = builtin_error(error, path)
    if isinstance(translated, InvalidArgumentError):
        raise ValueError(str(error)) from error
    raise translated from (None if translated is error else error)
