"""The interface for threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from . import _alternatives, _checkpoints, _commands, _operations
from ._errors import InvalidArgumentError, SandcellError
from ._operations import Core, Operation, T
from ._results import Alternative, Artifact, Checkpoint, FileChanges, FileList, HistoryRecord, Rewind, Run, Saved


def drive(operation: Operation[T]) -> T:
    """Carries an operation out in this thread."""
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
            if not isinstance(effect, tuple):
                close = getattr(effect, "close", None)
                if close is not None:
                    close()
                raise InvalidArgumentError("the callback is a coroutine function", "pass a plain one, or use AsyncSandbox")
            call, seconds = effect
            answer = call.wait(seconds)
        except BaseException as error:
            operation.throw(error)
            raise


class Files:
    """The files of a sandbox. Relative paths start at ``/home/user``."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def write(self, path: str | os.PathLike[str], data: str | bytes, *, append: bool = False) -> int:
        """Writes a file, making its parent folders; text is written as UTF-8. Returns the number of bytes.

        Data of more than 1 MiB is sent in parts: a reader inside may see a part of the file meanwhile.
        """
        return drive(self._core.write(path, data, append))

    def read(self, path: str | os.PathLike[str], *, max_bytes: int = 256 << 20) -> bytes:
        """Returns the bytes of a file; one of more than ``max_bytes`` is refused with ``OutputLimitError``."""
        return drive(self._core.read(path, max_bytes))

    def read_text(self, path: str | os.PathLike[str], *, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Returns the text of a file of at most 256 MiB; ``OutputLimitError`` is raised for a larger one."""
        return self.read(path).decode(encoding, errors)

    def upload(self, local_path: str | os.PathLike[str], remote_path: str | os.PathLike[str]) -> int:
        """Sends a file or a folder of this machine, at most 100,000 entries; returns the number of files.

        The contents of a folder go into the folder ``remote_path``, which is made if it is missing; files of the same
        name are replaced. Execute rights are kept. A link that leads out of the folder, and what is no file, raises
        ``InvalidArgumentError``. Runs the ``tar`` and ``chmod`` of the sandbox.
        """
        return drive(self._core.upload(local_path, remote_path))

    def download(
        self, remote_path: str | os.PathLike[str], local_path: str | os.PathLike[str], *, max_bytes: int = 1 << 30
    ) -> int:
        """Fetches a file or a folder, at most 100,000 entries; returns the number of files.

        The contents of a folder go into the folder ``local_path``, which is made if it is missing; files of the same
        name are replaced. Execute rights are kept, links and special files are left out. Names that lead out of the
        folder raise ``DeniedByPolicyError``, more than ``max_bytes`` bytes ``OutputLimitError``; files that came before
        stay. Runs the ``tar`` of the sandbox.
        """
        return drive(self._core.download(remote_path, local_path, max_bytes))

    def list(self, path: str | os.PathLike[str] = ".", *, recursive: bool = False) -> FileList:
        """Returns the entries of a folder, at most 300; ``more`` of the list is the number of those left out."""
        return drive(self._core.list(path, recursive))

    def exists(self, path: str | os.PathLike[str]) -> bool:
        """Returns whether there is a file or a folder."""
        return drive(self._core.exists(path))

    def remove(self, path: str | os.PathLike[str]) -> None:
        """Removes a file, or a folder with everything in it. Runs the ``rm`` of the sandbox.

        Raises ``NotFoundError`` where there is nothing, ``DeniedByPolicyError`` where it cannot be removed.
        """
        drive(_commands.remove(self._core, path))


class Process:
    """A command in the background, as :meth:`Sandbox.start` returns it. It ends with its sandbox."""

    def __init__(self, program: _commands.Program) -> None:
        self._program = program

    @property
    def id(self) -> str:
        """The id of its execution."""
        return self._program.id

    def write(self, data: str | bytes) -> None:
        """Writes to its standard input; text is written as UTF-8. Waits while the program does not read.

        Raises ``ExpiredError`` when the program has ended, ``InvalidArgumentError`` when its input is closed.
        """
        drive(self._program.write(data))

    def close_stdin(self) -> None:
        """Ends its standard input."""
        drive(self._program.close_stdin())

    def wait(self, timeout: float | None = None) -> Run:
        """Waits for its end and returns how it ended, with the first MiB of each stream.

        Raises ``TimedOutError`` if it still runs after ``timeout`` seconds; it runs on then.
        """
        return drive(self._program.wait(timeout))

    def kill(self) -> None:
        """Ends it and its process group: by an interrupt, then by force. Does nothing once it has ended."""
        drive(self._program.kill())

    def running(self) -> bool:
        """Returns whether it still runs."""
        return drive(self._program.running())

    def __repr__(self) -> str:
        return f"<Process {self.id}>"


class Sandbox:
    """A sandbox of its own: files, and interpreters that keep their variables from run to run.

    It is made when it is first used, or where ``with`` begins, and ended by :meth:`close`, at the end of ``with``, or
    when nobody refers to it any more. All of its methods may be called from several threads.

    ``packages`` are installed first (``npm:NAME`` is one of npm). ``timeout`` is in seconds and holds for each run,
    ``lifetime``, in seconds, for the whole sandbox. ``memory_mb`` and ``disk_mb`` (MiB) and ``cpus`` (processors) are
    limits. ``network`` is a list of hosts, of those that the operator allows. ``image`` is a container image,
    ``backend`` the name of a back end. With ``url`` and ``token`` it is a sandbox of a service
    (``sandcell serve --http``), else one of this machine. Arguments of a wrong type or value raise
    ``InvalidArgumentError``.

    ``saved`` is a state that :meth:`save` has saved: the sandbox goes on from its variables and files, and has its
    packages, limits and network. With ``only_files`` it has no variables of it.

    ``tools`` are functions of this program, a list or a dict of names and functions. Code in the sandbox calls them as
    ``tools.functions.NAME(argument=value)``. Signatures and docstrings describe them to the code. They run in threads of
    this program, at most 16 at once; each call of a coroutine function has an event loop of its own.
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
            in_loop=False,
        )
        #: The files of the sandbox.
        self.files = Files(self._core)

    @property
    def id(self) -> str | None:
        """The id of the sandbox; None until it is made."""
        return self._core.id

    @property
    def closed(self) -> bool:
        """Whether the sandbox was closed."""
        return self._core.closed

    def open(self) -> Sandbox:
        """Makes the sandbox now, if it is not made yet. Returns the sandbox itself."""
        drive(self._core.open())
        return self

    def run(
        self,
        code: str,
        *,
        language: str | None = None,
        stdin: str | None = None,
        timeout: float | None = None,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
        max_output: int = 1 << 20,
        checkpoint: str | None = None,
    ) -> Run:
        """Runs code and returns how it ended. Variables, imports and files stay for the next run of the language.

        Code that fails, takes longer than ``timeout`` seconds or is killed is a result too; ``check()`` of the run
        raises it. ``on_stdout`` and ``on_stderr`` get the output in pieces while the code runs. ``KeyboardInterrupt``
        and an exception of a callback end the code inside. ``stdout`` and ``stderr`` of the run are the first
        ``max_output`` bytes of each; ``truncated`` tells whether there was more. ``checkpoint`` is a name: the state is
        kept under it before the code runs, as by :meth:`checkpoint`. If that is not possible, the code does not run.
        """
        operation = self._core.run(code, language, stdin, timeout, on_stdout, on_stderr, max_output, checkpoint)
        return drive(operation)

    def command(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
        max_output: int = 1 << 20,
    ) -> Run:
        """Runs a command next to the sessions and to other commands, and returns how it ended.

        A str is run by the Bash of the sandbox (by ``sh`` where it has none), a list is a program with its arguments.
        ``cwd`` must exist; without it the command starts in ``/home/user``. ``env`` adds to the sandbox's variables.
        ``stdin`` is what it reads. A failing command is a result; a program that does not exist has exit code 127.
        The rest is as in :meth:`run`.
        """
        operation = _commands.command(self._core, command, cwd, env, stdin, timeout, on_stdout, on_stderr, max_output)
        return drive(operation)

    def start(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Process:
        """Starts a command in the background and returns at once. It ends with the sandbox at the latest.

        ``timeout`` seconds end it; without it, it may run for an hour. The arguments are those of :meth:`command`.
        """
        return Process(drive(_commands.start(self._core, command, cwd, env, timeout)))

    def install(self, *packages: str, language: str = "python", timeout: float = 300.0) -> Run:
        """Makes packages importable (``"numpy"``, ``"pandas>=2,<3"``), also in a session that runs.

        Raises ``PackageFailedError`` or ``PackageNotAllowedError``. ``language="javascript"`` installs those of npm.
        """
        return drive(self._core.install(packages, language, timeout))

    def reset(self, language: str | None = None) -> None:
        """Restarts the interpreter of a language, or all, and forgets its variables. Files and packages stay."""
        drive(self._core.reset(language))

    def checkpoint(self, name: str | None = None) -> Checkpoint:
        """Keeps the variables and the files as they are now. :meth:`rewind` brings them back, any number of times.

        ``name`` is at most 64 letters, digits, ``-``, ``_`` and ``.``; without it the server chooses one. A checkpoint
        of the same name is replaced. A sandbox keeps 8 of them by default and drops the oldest for a new one. Their
        memory counts against the limit of the sandbox.

        Raises ``CheckpointUnavailableError`` while a session has threads or is not one of Python, ``BusyError`` while
        code runs, ``LimitReachedError`` if the files are too large. Nothing is changed then.
        """
        return drive(_checkpoints.create(self._core, name))

    def checkpoints(self) -> list[Checkpoint]:
        """Returns the checkpoints, the oldest first.

        The server makes automatic ones when no code has run for about 0.3 s. By default it keeps the newest two.
        """
        return drive(_checkpoints.existing(self._core))

    def rewind(self, to: Checkpoint | str | int = 1) -> Rewind:
        """Brings back the variables and the files of a checkpoint, any number of times.

        ``to`` is a :class:`Checkpoint`, a name, or a number: 1 is the state before the last execution, 2 the state
        before the last two (-1 and -2 mean the same). Commands are executions, too. A number needs a checkpoint of
        exactly that state, often an automatic one; see :meth:`checkpoints`. Sessions that the checkpoint does not have
        end.

        Raises ``NotFoundError`` if there is no such checkpoint, ``BusyError`` while code runs. Nothing is changed then.
        Raises ``SessionLostError`` if a session could not be restored; the files are those of the checkpoint then.
        """
        return drive(_checkpoints.rewind(self._core, to))

    def branch(self, count: int = 1, *, checkpoint: Checkpoint | str | None = None) -> list[Sandbox]:
        """Makes ``count`` sandboxes that go on from the variables and files of this one, and returns them.

        What one of them changes, no other sees. Each has the limits, packages and network of this one, and ends on its
        own: close those that are not needed. ``checkpoint`` is a named checkpoint to go on from. Functions (``tools``)
        stay with this sandbox. Random states and temporary names are new in each branch.

        Raises ``CheckpointUnavailableError`` while a session has threads or is not one of Python, if there are several
        sessions, and where the server cannot copy memory. Nothing is changed then.
        """
        cores = drive(_checkpoints.branch(self._core, count, checkpoint))
        return [Sandbox._of(core) for core in cores]

    @classmethod
    def _of(cls, core: Core) -> Sandbox:
        found = cls.__new__(cls)
        found._core, found.files = core, Files(core)
        return found

    def save(self, name: Saved | str, *, checkpoint: Checkpoint | str | None = None, only_files: bool = False) -> Saved:
        """Saves the variables and the files, as they are now or as in a named checkpoint, on the disk of the server.

        ``Sandbox(saved=name)`` goes on from them, any number of times, also after a restart of the server. A saved
        state of the same name is replaced. Variables need the same program, kernel and Python.
        ``Sandbox(saved=name, only_files=True)`` opens the files alone, with any of them. ``only_files`` here saves only
        the files: code with threads or in other languages may run then.

        Raises what :meth:`branch` raises, and ``LimitReachedError`` if there are too many saved states.
        """
        return drive(_checkpoints.save(self._core, name, checkpoint, only_files))

    def changes(self, since: Checkpoint | str | int = 1) -> FileChanges:
        """Returns the files that differ from those of a checkpoint, with the changed lines of text files.

        ``since`` is a state as in :meth:`rewind`: 1 is the one before the last execution. At most 1,000 are returned.

        Raises ``NotFoundError`` if there is no such checkpoint, ``BusyError`` while code runs.
        """
        return drive(_checkpoints.changes(self._core, since))

    def mount_changes(self) -> FileChanges:
        """Returns the files of copy-on-write mounts that differ from the host's, with the changed lines of text files.

        At most 1,000 are returned. ``sandcell commit`` applies them to the host's folders.

        Raises ``NotFoundError`` if the server has no such mount.
        """
        return drive(_checkpoints.mount_changes(self._core))

    def try_many(
        self,
        codes: Iterable[str],
        *,
        language: str | None = None,
        timeout: float | None = None,
        max_output: int = 1 << 20,
    ) -> Alternatives:
        """Runs several pieces of code at the same time. Each runs in a new branch of this sandbox (:meth:`branch`).

        Returns for each how it ran and what it changed. ``keep`` of the result lets this sandbox go on as one of the
        branches. Until then this sandbox does not change. The arguments are those of :meth:`run`. The time limit holds
        for each piece.

        >>> with Sandbox() as sandbox:
        ...     sandbox.run("rows = [3, 1, 2]").check()
        ...     with sandbox.try_many(["x = max(rows)", "x = sum(rows)"]) as found:
        ...         found.keep(found[1])
        ...     sandbox.run("x").result
        '6'

        Raises what :meth:`branch` raises, ``InvalidArgumentError`` for a sandbox with ``tools``. No branch is left then.
        """
        tried = drive(_alternatives.try_many(self._core, codes, language, timeout, max_output))
        return Alternatives(self, tried)

    def drop_checkpoint(self, checkpoint: Checkpoint | str) -> None:
        """Drops a checkpoint and frees its memory.

        Raises ``NotFoundError`` if there is no such checkpoint, ``BusyError`` while code runs.
        """
        drive(_checkpoints.drop(self._core, checkpoint))

    def status(self) -> dict[str, Any]:
        """Returns the server's object of the sandbox: state, limits, usage, sessions, isolation, packages."""
        return drive(self._core.status())

    def history(self, last_n: int = 10) -> list[HistoryRecord]:
        """Returns the latest runs, the newest first; at most 50."""
        return drive(self._core.history(last_n))

    def fetch(self, artifact: Artifact) -> bytes:
        """Returns the bytes of a file that a run handed back, such as a plot in full size."""
        return drive(self._core.fetch(artifact))

    def close(self) -> None:
        """Ends the sandbox: programs, variables and files are gone. Closing twice does nothing."""
        drive(self._core.close())

    def __enter__(self) -> Sandbox:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        core = getattr(self, "_core", None)
        if core is not None:
            core.abandon()

    def __repr__(self) -> str:
        return f"<Sandbox {self.id or 'not made yet'}{', closed' if self.closed else ''}>"


class Alternatives(list[Alternative[Sandbox]]):
    """Pieces of code that ran side by side, as :meth:`Sandbox.try_many` returns them, in the order of the request.

    Each has a branch. :meth:`keep`, :meth:`close` and the end of ``with`` end the branches.
    """

    def __init__(self, source: Sandbox, tried: list[_alternatives.Tried]) -> None:
        super().__init__(Alternative(one.run, one.files, one.variables, Sandbox._of(one.core)) for one in tried)
        self._source = source

    def keep(self, alternative: Alternative[Sandbox]) -> None:
        """Lets the sandbox go on as the branch of an alternative, and ends the other branches.

        The sandbox then has the id, files, variables and history of the branch. Its earlier processes and checkpoints are
        gone. ``rewind()`` of the sandbox undoes the alternative.
        """
        drive(_alternatives.keep(self._source._core, self, alternative))

    def close(self) -> None:
        """Ends the branches. The sandbox stays as it is."""
        drive(_alternatives.close(self))

    def __enter__(self) -> Alternatives:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def saved(*, url: str | None = None, token: str | None = None) -> list[Saved]:
    """Returns the states that :meth:`Sandbox.save` has saved, by name."""
    return drive(_checkpoints.saved(_operations.open_channel(url, token)))


def drop_saved(name: Saved | str, *, url: str | None = None, token: str | None = None) -> None:
    """Drops a saved state. Raises ``NotFoundError`` if there is none of this name."""
    drive(_checkpoints.drop_saved(_operations.open_channel(url, token), name))


def run(
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
    on_stdout: Callable[[str], object] | None = None,
    on_stderr: Callable[[str], object] | None = None,
    max_output: int = 1 << 20,
    url: str | None = None,
    token: str | None = None,
) -> Run:
    """Runs code once in a fresh sandbox that is removed afterwards.

    ``files`` are put there first: path to text. ``files`` of the run has the contents of the files that ``outputs``
    names. The rest is as in :class:`Sandbox`.
    """
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
    return drive(operation)
