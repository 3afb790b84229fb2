"""The interface for asyncio: the methods of ``Sandbox``, to be awaited."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from . import _alternatives, _checkpoints, _commands, _operations
from ._call import Call
from ._errors import SandcellError
from ._operations import Core, Operation, T
from ._results import Alternative, Artifact, Checkpoint, FileChanges, FileList, HistoryRecord, Rewind, Run, Saved

Callback = Callable[[str], "Awaitable[object] | object"]


async def drive(operation: Operation[T]) -> T:
    """Carries an operation out in the running event loop."""
    answer: Any = None
    while True:
        try:
            effect = operation.send(answer)
        except StopIteration as end:
            value: T = end.value
            return value
        except SandcellError as error:
            # The caller's own lines are what matters, not those between them and the server.
            raise error.with_traceback(None) from None
        try:
            answer = await _wait(*effect) if isinstance(effect, tuple) else await effect
        except BaseException as error:
            operation.throw(error)
            raise


async def _wait(call: Call, seconds: float) -> bool:
    if call.done:
        return True
    loop = asyncio.get_running_loop()
    finished: asyncio.Future[None] = loop.create_future()

    def finish() -> None:
        if not finished.done():
            finished.set_result(None)

    def notify() -> None:
        try:
            loop.call_soon_threadsafe(finish)
        except RuntimeError:
            pass  # The loop was closed: nobody waits any more.

    timer = loop.call_later(seconds, finish)
    call.on_done(notify)
    try:
        await finished
    finally:
        timer.cancel()
    return call.done


class AsyncFiles:
    """The files of a sandbox, as :class:`sandcell.Files`."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def write(self, path: str | os.PathLike[str], data: str | bytes, *, append: bool = False) -> int:
        """Writes a file, making its parent folders; text is written as UTF-8. Returns the number of bytes."""
        return await drive(self._core.write(path, data, append))

    async def read(self, path: str | os.PathLike[str], *, max_bytes: int = 256 << 20) -> bytes:
        """Returns the bytes of a file; one of more than ``max_bytes`` is refused with ``OutputLimitError``."""
        return await drive(self._core.read(path, max_bytes))

    async def read_text(self, path: str | os.PathLike[str], *, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Returns the text of a file of at most 256 MiB; ``OutputLimitError`` is raised for a larger one."""
        return (await self.read(path)).decode(encoding, errors)

    async def upload(self, local_path: str | os.PathLike[str], remote_path: str | os.PathLike[str]) -> int:
        """Sends a file or a folder of this machine, at most 100,000 entries; returns the number of files.

        The contents of a folder go into the folder ``remote_path``, which is made if it is missing; files of the same
        name are replaced. Execute rights are kept. A link that leads out of the folder, and what is no file, raises
        ``InvalidArgumentError``. Runs the ``tar`` and ``chmod`` of the sandbox.
        """
        return await drive(self._core.upload(local_path, remote_path))

    async def download(
        self, remote_path: str | os.PathLike[str], local_path: str | os.PathLike[str], *, max_bytes: int = 1 << 30
    ) -> int:
        """Fetches a file or a folder, at most 100,000 entries; returns the number of files.

        The contents of a folder go into the folder ``local_path``, which is made if it is missing; files of the same
        name are replaced. Execute rights are kept, links and special files are left out. Names that lead out of the
        folder raise ``DeniedByPolicyError``, more than ``max_bytes`` bytes ``OutputLimitError``; files that came before
        stay. Runs the ``tar`` of the sandbox.
        """
        return await drive(self._core.download(remote_path, local_path, max_bytes))

    async def list(self, path: str | os.PathLike[str] = ".", *, recursive: bool = False) -> FileList:
        """Returns the entries of a folder, at most 300; ``more`` of the list is the number of those left out."""
        return await drive(self._core.list(path, recursive))

    async def exists(self, path: str | os.PathLike[str]) -> bool:
        """Returns whether there is a file or a folder."""
        return await drive(self._core.exists(path))

    async def remove(self, path: str | os.PathLike[str]) -> None:
        """Removes a file, or a folder with everything in it. Runs the ``rm`` of the sandbox.

        Raises ``NotFoundError`` where there is nothing, ``DeniedByPolicyError`` where it cannot be removed.
        """
        await drive(_commands.remove(self._core, path))


class AsyncProcess:
    """A command in the background, with the methods of :class:`sandcell.Process`. It ends with its sandbox."""

    def __init__(self, program: _commands.Program) -> None:
        self._program = program

    @property
    def id(self) -> str:
        """The id of its execution."""
        return self._program.id

    async def write(self, data: str | bytes) -> None:
        """Writes to its standard input; text is written as UTF-8. Waits while the program does not read.

        Raises ``ExpiredError`` when the program has ended, ``InvalidArgumentError`` when its input is closed.
        """
        await drive(self._program.write(data))

    async def close_stdin(self) -> None:
        """Ends its standard input."""
        await drive(self._program.close_stdin())

    async def wait(self, timeout: float | None = None) -> Run:
        """Waits for its end and returns how it ended, with the first MiB of each stream.

        Raises ``TimedOutError`` if it still runs after ``timeout`` seconds; it runs on then.
        """
        return await drive(self._program.wait(timeout))

    async def kill(self) -> None:
        """Ends it and its process group: by an interrupt, then by force. Does nothing once it has ended."""
        await drive(self._program.kill())

    async def running(self) -> bool:
        """Returns whether it still runs."""
        return await drive(self._program.running())

    def __repr__(self) -> str:
        return f"<AsyncProcess {self.id}>"


class AsyncSandbox:
    """A sandbox for asyncio, with the arguments and methods of :class:`sandcell.Sandbox`.

    Cancelling a task that awaits :meth:`run` ends the code inside. Callbacks may be coroutine functions. Coroutine
    functions among the ``tools`` run in the event loop that makes the sandbox, other functions in threads.
    """

    def __init__(
        self,
        *,
        packages: Iterable[str] = (),
        env: Mapping[str, str] | None = None,
        image: str | None = None,
        memory_mb: int | None = None,
        cpus: float | None = None,
        disk_mb: int | None = None,
        network: Iterable[str] = (),
        lifetime: float | None = None,
        backend: str | None = None,
        label: str | None = None,
        timeout: float = 30.0,
        language: str = "python",
        url: str | None = None,
        token: str | None = None,
        tools: Iterable[Callable[..., object]] | Mapping[str, Callable[..., object]] = (),
        saved: Saved | str | None = None,
        only_files: bool = False,
    ) -> None:
        self._core = Core(
            packages=packages,
            env=env or {},
            image=image,
            memory_mb=memory_mb,
            cpus=cpus,
            disk_mb=disk_mb,
            network=network,
            lifetime=lifetime,
            backend=backend,
            label=label,
            timeout=timeout,
            language=language,
            url=url,
            token=token,
            tools=tools,
            saved=saved,
            only_files=only_files,
            in_loop=True,
        )
        #: The files of the sandbox.
        self.files = AsyncFiles(self._core)

    @property
    def id(self) -> str | None:
        """The id of the sandbox; None until it is made."""
        return self._core.id

    @property
    def closed(self) -> bool:
        """Whether the sandbox was closed."""
        return self._core.closed

    async def open(self) -> AsyncSandbox:
        """Makes the sandbox now, if it is not made yet. Returns the sandbox itself."""
        await drive(self._core.open())
        return self

    async def run(
        self,
        code: str,
        *,
        language: str | None = None,
        stdin: str | None = None,
        timeout: float | None = None,
        on_stdout: Callback | None = None,
        on_stderr: Callback | None = None,
        max_output: int = 1 << 20,
        checkpoint: str | None = None,
    ) -> Run:
        """Runs code and returns how it ended, as :meth:`sandcell.Sandbox.run`."""
        operation = self._core.run(code, language, stdin, timeout, on_stdout, on_stderr, max_output, checkpoint)
        return await drive(operation)

    async def command(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        on_stdout: Callback | None = None,
        on_stderr: Callback | None = None,
        max_output: int = 1 << 20,
    ) -> Run:
        """Runs a command, as :meth:`sandcell.Sandbox.command`."""
        operation = _commands.command(self._core, command, cwd, env, stdin, timeout, on_stdout, on_stderr, max_output)
        return await drive(operation)

    async def start(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> AsyncProcess:
        """Starts a command in the background, as :meth:`sandcell.Sandbox.start`."""
        return AsyncProcess(await drive(_commands.start(self._core, command, cwd, env, timeout)))

    async def install(self, *packages: str, language: str = "python", timeout: float = 300.0) -> Run:
        """Makes packages importable, as :meth:`sandcell.Sandbox.install`."""
        return await drive(self._core.install(packages, language, timeout))

    async def reset(self, language: str | None = None) -> None:
        """Restarts the interpreter of a language, or all, and forgets its variables. Files and packages stay."""
        await drive(self._core.reset(language))

    async def checkpoint(self, name: str | None = None) -> Checkpoint:
        """Keeps the variables and the files as they are now, as :meth:`sandcell.Sandbox.checkpoint`."""
        return await drive(_checkpoints.create(self._core, name))

    async def checkpoints(self) -> list[Checkpoint]:
        """Returns the checkpoints, the oldest first, as :meth:`sandcell.Sandbox.checkpoints`."""
        return await drive(_checkpoints.existing(self._core))

    async def rewind(self, to: Checkpoint | str | int = 1) -> Rewind:
        """Brings back the variables and the files of a checkpoint, as :meth:`sandcell.Sandbox.rewind`."""
        return await drive(_checkpoints.rewind(self._core, to))

    async def branch(self, count: int = 1, *, checkpoint: Checkpoint | str | None = None) -> list[AsyncSandbox]:
        """Makes sandboxes that go on from the variables and files of this one, as :meth:`sandcell.Sandbox.branch`."""
        cores = await drive(_checkpoints.branch(self._core, count, checkpoint))
        return [AsyncSandbox._of(core) for core in cores]

    @classmethod
    def _of(cls, core: Core) -> AsyncSandbox:
        found = cls.__new__(cls)
        found._core, found.files = core, AsyncFiles(core)
        return found

    async def save(
        self, name: Saved | str, *, checkpoint: Checkpoint | str | None = None, only_files: bool = False
    ) -> Saved:
        """Saves the variables and the files on the disk of the server, as :meth:`sandcell.Sandbox.save`."""
        return await drive(_checkpoints.save(self._core, name, checkpoint, only_files))

    async def changes(self, since: Checkpoint | str | int = 1) -> FileChanges:
        """Returns the files that differ from those of a checkpoint, as :meth:`sandcell.Sandbox.changes`."""
        return await drive(_checkpoints.changes(self._core, since))

    async def mount_changes(self) -> FileChanges:
        """Returns the changed files of copy-on-write mounts, as :meth:`sandcell.Sandbox.mount_changes`."""
        return await drive(_checkpoints.mount_changes(self._core))

    async def try_many(
        self,
        codes: Iterable[str],
        *,
        language: str | None = None,
        timeout: float | None = None,
        max_output: int = 1 << 20,
    ) -> AsyncAlternatives:
        """Runs several pieces of code at the same time, each in a branch, as :meth:`sandcell.Sandbox.try_many`."""
        tried = await drive(_alternatives.try_many(self._core, codes, language, timeout, max_output))
        return AsyncAlternatives(self, tried)

    async def drop_checkpoint(self, checkpoint: Checkpoint | str) -> None:
        """Drops a checkpoint, as :meth:`sandcell.Sandbox.drop_checkpoint`."""
        await drive(_checkpoints.drop(self._core, checkpoint))

    async def status(self) -> dict[str, Any]:
        """Returns the server's object of the sandbox: state, limits, usage, sessions, isolation, packages."""
        return await drive(self._core.status())

    async def history(self, last_n: int = 10) -> list[HistoryRecord]:
        """Returns the latest runs, the newest first; at most 50."""
        return await drive(self._core.history(last_n))

    async def fetch(self, artifact: Artifact) -> bytes:
        """Returns the bytes of a file that a run handed back, such as a plot in full size."""
        return await drive(self._core.fetch(artifact))

    async def close(self) -> None:
        """Ends the sandbox: programs, variables and files are gone. Closing twice does nothing."""
        await drive(self._core.close())

    async def __aenter__(self) -> AsyncSandbox:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        core = getattr(self, "_core", None)
        if core is not None:
            core.abandon()

    def __repr__(self) -> str:
        return f"<AsyncSandbox {self.id or 'not made yet'}{', closed' if self.closed else ''}>"


class AsyncAlternatives(list[Alternative[AsyncSandbox]]):
    """Pieces of code that ran side by side, as :class:`sandcell.Alternatives`."""

    def __init__(self, source: AsyncSandbox, tried: list[_alternatives.Tried]) -> None:
        super().__init__(Alternative(one.run, one.files, one.variables, AsyncSandbox._of(one.core)) for one in tried)
        self._source = source

    async def keep(self, alternative: Alternative[AsyncSandbox]) -> None:
        """Lets the sandbox go on as the branch of an alternative, as :meth:`sandcell.Alternatives.keep`."""
        await drive(_alternatives.keep(self._source._core, self, alternative))

    async def close(self) -> None:
        """Ends the branches. The sandbox stays as it is."""
        await drive(_alternatives.close(self))

    async def __aenter__(self) -> AsyncAlternatives:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


async def run_async(
    code: str,
    *,
    language: str = "python",
    packages: Iterable[str] = (),
    files: Mapping[str, str] | None = None,
    stdin: str | None = None,
    outputs: Iterable[str] = (),
    timeout: float = 30.0,
    memory_mb: int | None = None,
    network: Iterable[str] = (),
    on_stdout: Callback | None = None,
    on_stderr: Callback | None = None,
    max_output: int = 1 << 20,
    url: str | None = None,
    token: str | None = None,
) -> Run:
    """Runs code once in a fresh sandbox that is removed afterwards, as :func:`sandcell.run`."""
    channel = _operations.open_channel(url, token)
    operation = _operations.run_once(
        channel,
        code,
        language,
        packages,
        files or {},
        stdin,
        outputs,
        timeout,
        memory_mb,
        network,
        on_stdout,
        on_stderr,
        max_output,
    )
    return await drive(operation)
