"""Runs the code of smolagents' `CodeAgent` in a sandbox.

>>> from smolagents import CodeAgent
>>> from sandcell.smolagents import SandcellExecutor
>>> with SandcellExecutor() as executor:
...     agent = CodeAgent(tools=[], model=model, executor=executor)
...     agent.run("…")

smolagents is imported here, and nowhere else in the package. Tested with smolagents 1.26.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from smolagents.local_python_executor import CodeOutput
from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.remote_executors import RemotePythonExecutor
from smolagents.utils import AgentError

from ._results import Run
from ._sync import Sandbox

#: Reads the answer that the agent's code has just raised: results hold the first 2,000 bytes of an error's message.
_READ_ANSWER = "import sys as _sys; _ = _sys.stdout.write(_sys.last_value.value)"
#: Bytes of an answer that is read.
_MAX_ANSWER = 16 << 20


class SandcellExecutor(RemotePythonExecutor):  # type: ignore[misc]
    """An executor whose code runs in a sandbox of its own. The arguments after the logger are those of ``Sandbox``.

    ``additional_imports`` are packages to install. ``allow_pickle`` lets answers be unpickled on this machine: code
    from inside can then run outside, so leave it off.
    """

    def __init__(
        self,
        additional_imports: Iterable[str] = (),
        logger: Any = None,
        allow_pickle: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(list(additional_imports), logger or AgentLogger(level=LogLevel.ERROR), allow_pickle)
        self.sandbox = Sandbox(**options).open()
        try:
            self.installed_packages = self.install_packages(self.additional_imports)
        except BaseException:
            self.sandbox.close()
            raise

    def run_code_raise_errors(self, code: str) -> CodeOutput:
        """Runs code; an error of it is an ``AgentError`` that the agent shows to its model."""
        run = self.sandbox.run(code)
        if run.error is not None and run.error.name == self.FINAL_ANSWER_EXCEPTION:
            answer = self._deserialize_final_answer(self._answer(run), allow_pickle=self.allow_pickle)
            return CodeOutput(output=answer, logs=_logs(run), is_final_answer=True)
        if not run.ok:
            raise AgentError(_failure(run), self.logger)
        return CodeOutput(output=_output(run), logs=_logs(run), is_final_answer=False)

    def install_packages(self, additional_imports: list[str]) -> list[str]:
        """Makes packages importable; the sandbox itself needs no network."""
        if additional_imports:
            self.sandbox.install(*additional_imports)
        return additional_imports

    def cleanup(self) -> None:
        """Ends the sandbox."""
        self.sandbox.close()

    def _answer(self, run: Run) -> str:
        answer = self.sandbox.run(_READ_ANSWER, max_output=_MAX_ANSWER)
        if answer.ok and not answer.truncated:
            return answer.stdout
        return run.error.value if run.error is not None else ""

    def __enter__(self) -> SandcellExecutor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cleanup()


def _logs(run: Run) -> str:
    return run.stdout + run.stderr


def _failure(run: Run) -> str:
    parts = [_logs(run), f"The code ended with status {run.status}:"]
    if run.error is not None:
        parts.append(str(run.error))
    if run.cause is not None:
        parts.append(f"{run.cause.message}\n{run.cause.remedy}")
    return "\n".join(filter(None, parts))


def _output(run: Run) -> Any:
    """Returns the first picture, if there is one, else the last expression's value as text."""
    if run.images:
        import PIL.Image

        return PIL.Image.open(io.BytesIO(run.images[0].data))
    return run.result
