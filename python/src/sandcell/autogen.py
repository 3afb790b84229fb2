"""Runs the code blocks of AutoGen's agents in a sandbox.

>>> from autogen_agentchat.agents import CodeExecutorAgent
>>> from sandcell.autogen import SandcellCodeExecutor
>>> async with SandcellCodeExecutor(memory_mb=1024) as executor:
...     agent = CodeExecutorAgent("coder", code_executor=executor)

AutoGen is imported here, and nowhere else in the package. Tested with autogen-core, autogen-ext and autogen-agentchat
0.7.5.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from autogen_core import CancellationToken, Component
from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
from pydantic import BaseModel, ConfigDict

from ._async import AsyncSandbox
from ._errors import (
    CodeRejectedError,
    ExpiredError,
    InvalidArgumentError,
    LanguageUnavailableError,
    NotFoundError,
    SessionLostError,
)
from ._model_text import text_for_model
from ._results import Run

#: Exit code of a block that ran too long, as AutoGen's own executors give it.
_TIMEOUT_EXIT_CODE = 124
#: Refusals that the author of the code can do something about: the agent shows them to its model.
_REFUSALS = (CodeRejectedError, InvalidArgumentError, LanguageUnavailableError)


@dataclass
class SandcellCodeResult(CodeResult):  # type: ignore[misc]
    """The output of code blocks. ``runs`` has the run of each block, with its pictures, files and cost."""

    runs: list[Run] = field(default_factory=list)


class SandcellCodeExecutorConfig(BaseModel):  # type: ignore[misc]
    """The arguments of ``Sandbox``. ``token`` is accepted, and never part of a dump."""

    model_config = ConfigDict(extra="forbid")

    packages: list[str] | None = None
    env: dict[str, str] | None = None
    image: str | None = None
    memory_mb: int | None = None
    cpus: float | None = None
    disk_mb: int | None = None
    network: list[str] | None = None
    lifetime: float | None = None
    backend: str | None = None
    label: str | None = None
    timeout: float | None = None
    language: str | None = None
    url: str | None = None
    token: str | None = None


class SandcellCodeExecutor(CodeExecutor, Component[SandcellCodeExecutorConfig]):  # type: ignore[misc]
    """An executor with a sandbox of its own. The arguments are those of ``Sandbox``.

    Blocks share their interpreter: variables and files stay until :meth:`stop`. The sandbox is made by :meth:`start`,
    or by the first block.
    """

    component_config_schema = SandcellCodeExecutorConfig
    component_provider_override = "sandcell.autogen.SandcellCodeExecutor"

    def __init__(self, **options: Any) -> None:
        self._options = {name: value for name, value in options.items() if value is not None}
        #: The sandbox; :meth:`stop` replaces it with one that is not made yet.
        self.sandbox = AsyncSandbox(**self._options)

    async def execute_code_blocks(
        self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> SandcellCodeResult:
        """Runs code blocks in order, up to the first that fails.

        A failure of the code, a time-out (exit code 124), rejected code and a language that is not available are
        results. The cancellation token ends the code inside and raises ``asyncio.CancelledError``.
        """
        outputs: list[str] = []
        runs: list[Run] = []
        for block in code_blocks:
            task = asyncio.ensure_future(self.sandbox.run(block.code, language=block.language.strip().lower() or None))
            cancellation_token.link_future(task)
            try:
                run = await task
            except _REFUSALS as error:
                return SandcellCodeResult(1, "\n".join([*outputs, str(error)]), runs)
            runs.append(run)
            outputs.append(text_for_model(run))
            if not run.ok:
                code = _TIMEOUT_EXIT_CODE if run.status == "timeout" else run.exit_code or 1
                return SandcellCodeResult(code, "\n".join(outputs), runs)
        return SandcellCodeResult(0, "\n".join(outputs), runs)

    async def start(self) -> None:
        """Makes the sandbox."""
        await self.sandbox.open()

    async def stop(self) -> None:
        """Ends the sandbox. The executor can be started again, with a fresh sandbox."""
        ended, self.sandbox = self.sandbox, AsyncSandbox(**self._options)
        await ended.close()

    async def restart(self) -> None:
        """Forgets variables; files and packages stay. A sandbox that has ended by itself is replaced."""
        if self.sandbox.id is None:
            return await self.start()
        try:
            await self.sandbox.reset()
        except (ExpiredError, NotFoundError, SessionLostError):
            await self.stop()
            await self.start()

    def _to_config(self) -> SandcellCodeExecutorConfig:
        return SandcellCodeExecutorConfig(**{name: value for name, value in self._options.items() if name != "token"})

    @classmethod
    def _from_config(cls, config: SandcellCodeExecutorConfig) -> SandcellCodeExecutor:
        return cls(**config.model_dump(exclude_none=True))
