"""Gives the sandbox agents of the OpenAI Agents SDK a sandbox of this machine, or of a service.

>>> from agents import RunConfig, Runner
>>> from agents.sandbox import SandboxAgent, SandboxRunConfig
>>> from sandcell.openai_agents import SandcellSandboxClient
>>> config = RunConfig(sandbox=SandboxRunConfig(client=SandcellSandboxClient()))
>>> await Runner.run(SandboxAgent(name="coder", instructions="…"), "…", run_config=config)

Errors of a session are the SDK's own (``ExecTimeoutError``, ``WorkspaceReadNotFoundError``, …); ``cause`` of one is
sandcell's error with its remedy. The SDK is imported here, and nowhere else in the package. Tested with openai-agents
0.24.
"""

from __future__ import annotations

import io
import tarfile
import uuid
from pathlib import Path
from typing import Any, Literal, NoReturn

from agents.sandbox import Manifest
from agents.sandbox.errors import (
    ConfigurationError,
    ErrorCode,
    ExecNonZeroError,
    ExecTimeoutError,
    ExecTransportError,
    MountConfigError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceStartError,
    WorkspaceWriteTypeError,
)
from agents.sandbox.session import (
    BaseSandboxClient,
    BaseSandboxClientOptions,
    BaseSandboxSession,
    Dependencies,
    Instrumentation,
    SandboxSession,
    SandboxSessionState,
)
from agents.sandbox.session.runtime_helpers import RESOLVE_WORKSPACE_PATH_HELPER
from agents.sandbox.snapshot import resolve_snapshot
from agents.sandbox.types import ExecResult
from agents.sandbox.util.tar_utils import UnsafeTarMemberError, validate_tarfile

from ._async import AsyncSandbox
from ._errors import ExpiredError, InvalidArgumentError, NotFoundError, SandcellError, SessionLostError

_BACKEND = "sandcell"
_SDK_DEFAULT_ROOT = "/workspace"
_WORKSPACE_ROOT = "/home/user/workspace"
#: Bytes of each stream of a command that are kept.
_MAX_OUTPUT = 1 << 20
#: Bytes of a file or of a workspace's archive that are read into memory.
_MAX_FILE = 1 << 30
#: Bytes of one piece of a file that is written.
_WRITE_SIZE = 1 << 20
#: Exit code of a command that was killed, as a shell reports it.
_KILLED_EXIT_CODE = 137
_GONE = (ExpiredError, NotFoundError, SessionLostError)


class SandcellSandboxClientOptions(BaseSandboxClientOptions):  # type: ignore[misc]
    """The arguments of ``Sandbox``. ``timeout`` holds for commands that bring no limit, in seconds."""

    type: Literal["sandcell"] = "sandcell"
    packages: tuple[str, ...] = ()
    env: dict[str, str] | None = None
    image: str | None = None
    memory_mb: int | None = None
    cpus: float | None = None
    disk_mb: int | None = None
    network: tuple[str, ...] = ()
    lifetime: float | None = None
    backend: str | None = None
    label: str | None = None
    timeout: float = 300.0


class SandcellSandboxSessionState(SandboxSessionState):  # type: ignore[misc]
    """What is stored about a session: no token, and no address of a service."""

    type: Literal["sandcell"] = "sandcell"
    sandbox_id: str = ""
    options: SandcellSandboxClientOptions = SandcellSandboxClientOptions()


class SandcellSandboxSession(BaseSandboxSession):  # type: ignore[misc]
    """A workspace in a sandbox. Pseudo-terminals, exposed ports, users and mounts are refused with a typed error."""

    state: SandcellSandboxSessionState

    def __init__(self, state: SandcellSandboxSessionState, url: str | None = None, token: str | None = None) -> None:
        self.state = state
        self._service: dict[str, Any] = {"url": url, "token": token}
        #: The sandbox; None until the session has one.
        self.sandbox: AsyncSandbox | None = None

    async def attach(self, sandbox: AsyncSandbox | None) -> bool:
        """Uses the sandbox of the state again; returns whether it still exists. The client may know it already."""
        if not self.state.sandbox_id:
            return False
        if sandbox is None:
            sandbox = AsyncSandbox(**self._service, timeout=self.state.options.timeout)
            sandbox._core.attach(self.state.sandbox_id)
        try:
            await sandbox.status()
        except _GONE:
            return False
        self.sandbox = sandbox
        return True

    async def open(self) -> None:
        """Makes a new sandbox, unless the session has one that is not closed."""
        if self.sandbox is not None and not self.sandbox.closed:
            return
        options = self.state.options.model_dump(exclude_none=True)
        del options["type"]
        variables = {**options.pop("env", {}), **await self.state.manifest.environment.resolve()}
        env = {name: value for name, value in variables.items() if value is not None}
        self.sandbox = await AsyncSandbox(**options, **self._service, env=env).open()
        self.state.sandbox_id = self.sandbox.id or ""
        self.state.workspace_root_ready = False
        self._set_start_state_preserved(False)

    async def _ensure_backend_started(self) -> None:
        try:
            await self.open()
        except SandcellError as error:
            raise WorkspaceStartError(path=self._workspace_root_path(), cause=error) from error

    async def _prepare_backend_workspace(self) -> None:
        root = self._workspace_root_path()
        try:
            (await self._open_sandbox().command(["mkdir", "-p", "--", str(root)])).check()
        except SandcellError as error:
            context = {"remedy": f"leave Manifest.root out, or choose a folder below {_WORKSPACE_ROOT}"}
            raise WorkspaceStartError(path=root, context=context, cause=error) from error

    def _open_sandbox(self) -> AsyncSandbox:
        if self.sandbox is None:
            raise ExpiredError("the session has no sandbox", "start the session first")
        return self.sandbox

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        words = [str(word) for word in command]
        try:
            run = await self._open_sandbox().command(
                words, cwd=str(self._workspace_root_path()), timeout=timeout, max_output=_MAX_OUTPUT
            )
        except SandcellError as error:
            context = {"backend": _BACKEND, "code": error.code, "remedy": error.remedy}
            raise ExecTransportError(command=words, context=context, cause=error) from error
        if run.status == "timeout":
            raise ExecTimeoutError(command=words, timeout_s=self.state.options.timeout if timeout is None else timeout)
        stderr = run.stderr
        if run.cause is not None and run.cause.code != "code_failed":
            stderr += f"{run.cause.message}\n{run.cause.remedy}\n"
        if run.truncated:
            stderr += f"sandcell: output of more than {_MAX_OUTPUT >> 20} MiB was left out\n"
        code = _KILLED_EXIT_CODE if run.exit_code is None else run.exit_code
        return ExecResult(stdout=run.stdout.encode(), stderr=stderr.encode(), exit_code=code)

    async def read(self, path: Path, *, user: Any = None) -> io.IOBase:
        """Reads a file of at most 1 GiB."""
        _refuse_user(user, "read")
        inside = await self._validate_path_access(path)
        try:
            return io.BytesIO(await self._open_sandbox().files.read(inside, max_bytes=_MAX_FILE))
        except NotFoundError as error:
            raise WorkspaceReadNotFoundError(path=path, cause=error) from error
        except SandcellError as error:
            raise WorkspaceArchiveReadError(path=path, cause=error) from error

    async def write(self, path: Path, data: io.IOBase, *, user: Any = None) -> None:
        """Writes a file in pieces, making its parent folders."""
        _refuse_user(user, "write")
        await self._write(await self._validate_path_access(path, for_write=True), data)

    async def _write(self, path: Path, data: io.IOBase) -> None:
        append = False
        while True:
            piece: Any = data.read(_WRITE_SIZE)
            if not isinstance(piece, (bytes, bytearray, str)):
                raise WorkspaceWriteTypeError(path=path, actual_type=type(piece).__name__)
            if not piece and append:
                return
            try:
                await self._open_sandbox().files.write(
                    path, piece if isinstance(piece, str) else bytes(piece), append=append
                )
            except SandcellError as error:
                raise WorkspaceArchiveWriteError(path=path, cause=error) from error
            append = True

    async def running(self) -> bool:
        """Returns whether the sandbox exists."""
        if self.sandbox is None or self.sandbox.id is None or self.sandbox.closed:
            return False
        try:
            await self.sandbox.status()
        except SandcellError:
            return False
        return True

    async def persist_workspace(self) -> io.IOBase:
        """Returns the workspace as a tar archive."""
        root, archive = self._workspace_root_path(), self._archive_path()
        skipped = sorted(path.as_posix() for path in self._persist_workspace_skip_relpaths())
        words = ["tar", "cf", str(archive), "--no-wildcards", *(f"--exclude=./{path}" for path in skipped), "."]
        try:
            await self._exec_checked_nonzero(*words)
            return io.BytesIO(await self._open_sandbox().files.read(archive, max_bytes=_MAX_FILE))
        except (ExecNonZeroError, SandcellError) as error:
            raise WorkspaceArchiveReadError(path=root, cause=error) from error
        finally:
            await self._remove(archive)

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Unpacks a tar archive into the workspace. Members that would land outside are refused before that."""
        root, archive = self._workspace_root_path(), self._archive_path()
        raw: Any = data.read()
        if not isinstance(raw, (bytes, bytearray)):
            raise WorkspaceWriteTypeError(path=root, actual_type=type(raw).__name__)
        packed = io.BytesIO(raw)
        try:
            with tarfile.open(fileobj=packed) as tar:
                validate_tarfile(tar)
            packed.seek(0)
            await self._write(archive, packed)
            await self._exec_checked_nonzero("tar", "xf", archive, "-C", root)
        except (ExecNonZeroError, OSError, UnsafeTarMemberError, tarfile.TarError) as error:
            raise WorkspaceArchiveWriteError(path=root, cause=error) from error
        finally:
            await self._remove(archive)

    def _archive_path(self) -> Path:
        return Path(f"/tmp/openai-agents-{self.state.session_id.hex}.tar")

    async def _remove(self, path: Path) -> None:
        try:
            await self._open_sandbox().command(["rm", "-f", "--", str(path)])
        except SandcellError:
            pass  # The sandbox is gone, and the archive with it.

    async def _shutdown_backend(self) -> None:
        if self.sandbox is not None:
            await self.sandbox.close()

    async def _validate_path_access(self, path: Path | str, *, for_write: bool = False) -> Path:
        inside: Path = await self._validate_remote_path_access(path, for_write=for_write)
        return inside

    def _runtime_helpers(self) -> tuple[Any, ...]:
        return (RESOLVE_WORKSPACE_PATH_HELPER,)

    async def _validate_manifest_application(self, *, manifest: Manifest | None = None, **options: Any) -> None:
        _check_manifest(manifest or self.state.manifest)
        await super()._validate_manifest_application(manifest=manifest, **options)

    def _prepare_exec_command(self, *command: str | Path, shell: bool | list[str], user: Any) -> list[str]:
        _refuse_user(user, "exec")
        words: list[str] = super()._prepare_exec_command(*command, shell=shell, user=None)
        return words

    async def pty_exec_start(self, *command: str | Path, **options: Any) -> NoReturn:
        """Is refused: there is no pseudo-terminal."""
        raise _unsupported("pseudo-terminals", "use exec, which runs a command to its end", "exec")

    async def pty_write_stdin(self, **options: Any) -> NoReturn:
        """Is refused: there is no pseudo-terminal."""
        raise _unsupported("pseudo-terminals", "use exec, which runs a command to its end", "exec")


class SandcellSandboxClient(BaseSandboxClient[SandcellSandboxClientOptions]):  # type: ignore[misc]
    """Makes sessions in sandboxes of this machine, or with ``url`` and ``token`` in those of a service."""

    backend_id = _BACKEND
    supports_default_options = True

    def __init__(
        self,
        *,
        url: str | None = None,
        token: str | None = None,
        instrumentation: Instrumentation | None = None,
        dependencies: Dependencies | None = None,
    ) -> None:
        self._url = url
        self._token = token
        self._instrumentation = instrumentation or Instrumentation()
        self._dependencies = dependencies
        # A sandbox ends when nobody refers to it; those of sessions that can still be resumed stay.
        self._sandboxes: dict[str, AsyncSandbox] = {}

    async def create(
        self,
        *,
        snapshot: Any = None,
        manifest: Manifest | None = None,
        options: SandcellSandboxClientOptions | None = None,
    ) -> SandboxSession:
        """Makes a session and its sandbox. The workspace is ``/home/user/workspace`` unless the manifest names another."""
        manifest = Manifest() if manifest is None else manifest
        if manifest.root == _SDK_DEFAULT_ROOT:
            manifest = manifest.model_copy(update={"root": _WORKSPACE_ROOT})
        _check_manifest(self._validate_manifest_for_create(manifest))
        number = uuid.uuid4()
        state = SandcellSandboxSessionState(
            session_id=number,
            manifest=manifest,
            snapshot=resolve_snapshot(snapshot, str(number)),
            options=options or SandcellSandboxClientOptions(),
        )
        return await self._open(SandcellSandboxSession(state, self._url, self._token))

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """Ends the sandbox of a session; programs and files are gone."""
        inner = session._inner
        if not isinstance(inner, SandcellSandboxSession):
            raise InvalidArgumentError("the session is not one of sandcell", "pass it to the client that made it")
        self._sandboxes.pop(inner.state.sandbox_id, None)
        await inner.shutdown()
        return session

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """Uses the sandbox of a state again. If it is gone, ``start`` of the session fills a new one from the snapshot."""
        if not isinstance(state, SandcellSandboxSessionState):
            raise InvalidArgumentError("the state is not one of sandcell", "pass it to the client that made it")
        state.assert_path_grants_rebound()
        _check_manifest(state.manifest)
        inner = SandcellSandboxSession(state, self._url, self._token)
        if await inner.attach(self._sandboxes.get(state.sandbox_id)):
            inner._set_start_state_preserved(True)
        return await self._open(inner)

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        """Returns the state that ``serialize_session_state`` stored."""
        return self._deserialize_session_state_payload(payload, SandcellSandboxSessionState)

    async def _open(self, inner: SandcellSandboxSession) -> SandboxSession:
        await inner.open()
        self._sandboxes = {number: sandbox for number, sandbox in self._sandboxes.items() if not sandbox.closed}
        self._sandboxes[inner.state.sandbox_id] = inner._open_sandbox()
        return self._wrap_session(inner, instrumentation=self._instrumentation)


def _check_manifest(manifest: Manifest) -> None:
    if manifest.users or manifest.groups:
        raise _unsupported("users and groups", "leave them out of the manifest", "start")
    if any(grant.host_path is not None for grant in manifest.extra_path_grants):
        raise _unsupported("folders of the host", "mount them with the operator's settings", "start")
    if manifest.mount_targets():
        raise MountConfigError(
            message="sandcell does not support mounts; copy the files with LocalDir, or let the operator mount the folder",
            context={"backend": _BACKEND},
        )


def _refuse_user(user: object, operation: str) -> None:
    if user is not None:
        raise _unsupported("other users in a sandbox", "leave user out", operation)


def _unsupported(what: str, remedy: str, operation: Any) -> ConfigurationError:
    return ConfigurationError(
        message=f"sandcell does not support {what}; {remedy}",
        error_code=ErrorCode.SANDBOX_CONFIG_INVALID,
        op=operation,
        context={"backend": _BACKEND},
        retryable=False,
    )
