"""Gives the tools of Inspect a sandbox for each sample: ``sandbox="sandcell"``.

>>> from inspect_ai import Task
>>> Task(dataset=dataset, solver=solver, sandbox="sandcell")

Inspect finds it by its entry point; nothing needs to be imported. Errors are those that Inspect expects
(``TimeoutError``, ``FileNotFoundError``, ``SandboxUnavailableError``, …), and the cause of one is sandcell's error with
its remedy. inspect_ai is imported here, and nowhere else in the package. Tested with inspect_ai 0.3.285.
"""

from __future__ import annotations

import os
import shlex
import uuid
from pathlib import Path
from typing import Any

import yaml
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel, ConfigDict, ValidationError

from ._async import AsyncSandbox
from ._errors import (
    BackendUnavailableError,
    ExpiredError,
    InvalidArgumentError,
    NotFoundError,
    OutputLimitError,
    SandcellError,
    SessionLostError,
)
from ._file_errors import builtin_error
from ._results import Run

#: The only user of a sandbox, by name and by number.
_USERS = ("user", "1000")
#: Exit codes that shells give a program that was killed, and one that cannot be executed.
_KILLED_EXIT_CODE, _NOT_EXECUTABLE_EXIT_CODE = 137, 126
#: Bytes of arguments that a call carries; the server takes 131,072.
_MAX_ARGUMENT_BYTES = 120_000
_GONE = (BackendUnavailableError, ExpiredError, NotFoundError, SessionLostError)


class SandcellConfig(BaseModel):  # type: ignore[misc]
    """The arguments of ``Sandbox``. ``timeout`` holds for commands that bring no limit, in seconds.

    Inspect writes it into its logs, so it has no token: that is read from ``SANDCELL_TOKEN``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

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
    timeout: float = 3600.0
    url: str | None = None

    def __hash__(self) -> int:
        # Inspect looks settings up in dictionaries; the hash of equal ones must be equal, however `env` is ordered.
        return hash((self.packages, self.image, self.url, frozenset((self.env or {}).items())))


@sandboxenv(name="sandcell")
class SandcellSandboxEnvironment(SandboxEnvironment):  # type: ignore[misc]
    """The sandbox of one sample."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        super().__init__()
        #: The sandbox itself, for what Inspect's interface does not have.
        self.sandbox = sandbox

    @classmethod
    def config_files(cls) -> list[str]:
        """The settings that Inspect looks for next to the task."""
        return ["sandcell.yaml"]

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> SandcellConfig:
        """Returns the settings that a log or a plain dictionary holds."""
        return _validated(config, "the config of the sandbox")

    @classmethod
    def default_concurrency(cls) -> int | None:
        """Two samples for each processor at once, unless ``max_sandboxes`` says otherwise."""
        return 2 * (os.cpu_count() or 1)

    def default_polling_interval(self) -> float:
        """Seconds between two looks at a service inside."""
        return 0.2

    @classmethod
    async def task_init(cls, task_name: str, config: Any) -> None:
        """Makes one sandbox and ends it: images and packages are there then, and bad settings fail before any sample."""
        await (await _open(config)).close()

    @classmethod
    async def sample_init(cls, task_name: str, config: Any, metadata: dict[str, str]) -> dict[str, SandboxEnvironment]:
        """Makes the sandbox of a sample."""
        return {"default": cls(await _open(config))}

    @classmethod
    async def sample_cleanup(
        cls, task_name: str, config: Any, environments: dict[str, SandboxEnvironment], interrupted: bool
    ) -> None:
        """Ends the sandbox of a sample."""
        for environment in environments.values():
            await environment.as_type(cls).sandbox.close()

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Runs a command; it is not run again when its time is over. The server limits how many run at once."""
        if user is not None and user not in _USERS:
            raise SandboxUserUnsupportedError(f"sandcell cannot run a command as {user!r}; a sandbox has one user, 'user'")
        most = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        try:
            cmd = await self._short(cmd)
            run = await self.sandbox.command(cmd, cwd=cwd, env=env, stdin=input, timeout=timeout, max_output=most)
        except SandcellError as error:
            raise _translated(error, cmd[0] if cmd else "") from error
        return _result(run, cmd)

    async def _short(self, cmd: list[str]) -> list[str]:
        """Puts arguments that are too long for a call into a script, which removes itself."""
        if sum(len(word.encode("utf-8", "replace")) for word in cmd) <= _MAX_ARGUMENT_BYTES:
            return cmd
        script = f"/tmp/.sandcell-{uuid.uuid4().hex}"
        await self.sandbox.files.write(script, f'rm -f -- "$0"\nexec {shlex.join(cmd)}\n')
        return ["sh", script]

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Writes a file, making its parent folders."""
        try:
            await self.sandbox.files.write(file, contents)
        except SandcellError as error:
            raise _translated(error, file) from error

    async def read_file(self, file: str, text: bool = True) -> Any:
        """Reads a file as text, or as bytes."""
        most = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        try:
            data = await self.sandbox.files.read(file, max_bytes=most)
        except OutputLimitError as error:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None) from error
        except SandcellError as error:
            raise _translated(error, file) from error
        return data.decode() if text else data


def _result(run: Run, cmd: list[str]) -> ExecResult[str]:
    if run.status == "timeout":
        late = TimeoutError(run.cause.message if run.cause else "the command took too long")
        # Inspect shows it to the model.
        late.truncated_output = run.stdout + run.stderr  # type: ignore[attr-defined]
        raise late
    most = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
    if run.truncated or max(len(run.stdout), len(run.stderr)) > most:
        raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, (run.stdout + run.stderr)[:most])
    code = _KILLED_EXIT_CODE if run.exit_code is None else run.exit_code
    stderr = run.stderr
    if run.cause is not None and run.cause.code != "code_failed":
        if code == _NOT_EXECUTABLE_EXIT_CODE:
            raise PermissionError(run.cause.message)
        stderr += f"{run.cause.message}\n{run.cause.remedy}\n"
    return ExecResult(code == 0, code, run.stdout, stderr)


def _translated(error: SandcellError, name: str) -> Exception:
    if isinstance(error, _GONE) and not error.message.endswith(" does not exist"):
        unavailable: Exception = SandboxUnavailableError(str(error))
        return unavailable
    return builtin_error(error, name)


async def _open(config: Any) -> AsyncSandbox:
    settings = _settings(config)
    token = os.environ.get("SANDCELL_TOKEN") if settings.url is not None else None
    return await AsyncSandbox(**settings.model_dump(), token=token).open()


def _settings(config: Any) -> SandcellConfig:
    if config is None:
        return SandcellConfig()
    if isinstance(config, SandcellConfig):
        return config
    if not isinstance(config, str):
        raise InvalidArgumentError(
            f"the config of the sandbox is a {type(config).__name__}", "pass a SandcellConfig, or the path of a YAML file"
        )
    try:
        found = yaml.safe_load(Path(config).read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InvalidArgumentError(f"{config} cannot be read: {error}", "pass the path of a YAML file") from error
    return _validated(found or {}, config)


def _validated(found: Any, name: str) -> SandcellConfig:
    try:
        settings: SandcellConfig = SandcellConfig.model_validate(found)
        return settings
    except ValidationError as error:
        known = ", ".join(SandcellConfig.model_fields)
        raise InvalidArgumentError(f"{name} is not valid: {error}", f"use these settings: {known}") from error
