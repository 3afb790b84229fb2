"""Tools for LangChain agents: an interpreter that keeps its variables, and a shell, in a sandbox.

>>> from langchain.agents import create_agent
>>> from sandcell.langchain import SandcellInterpreter
>>> with SandcellInterpreter(memory_mb=1024) as interpreter:
...     agent = create_agent(model, tools=[interpreter])
...     agent.invoke({"messages": [{"role": "user", "content": "…"}]})

LangChain is imported here, and nowhere else in the package. Tested with langchain 1.5.2 (langchain-core 1.8.3).
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, TypeVar, Union

from langchain_core.messages.content import create_image_block, create_text_block
from langchain_core.tools import BaseTool, ToolException
from pydantic import BaseModel, Field, PrivateAttr

from . import _async, _commands, _sync
from ._errors import InvalidArgumentError, SandcellError
from ._operations import Core, Operation
from ._results import Run, _base64
from ._sync import Sandbox

T = TypeVar("T", bound="_SandboxTool")

#: What LangChain puts into a message: text, or a list of text and images.
Content = Union[str, "list[Any]"]


class _Code(BaseModel):  # type: ignore[misc]
    code: str = Field(description="The code. The value of its last expression is returned, and what it prints.")
    packages: list[str] = Field(default=[], description='Packages to install first, such as ["pandas"].')


class _Command(BaseModel):  # type: ignore[misc]
    command: str = Field(description="The command, run by Bash in /home/user.")


class _SandboxTool(BaseTool):  # type: ignore[misc]
    """A tool with a sandbox. ``sandbox`` is shared and not closed; without it, one is made from ``options``."""

    response_format: str = "content_and_artifact"
    #: Errors of the sandbox are answers to the model. With False they end the agent as ``SandcellError``.
    handle_tool_error: Any = True
    _sandbox: Sandbox = PrivateAttr()
    _owns_sandbox: bool = PrivateAttr()

    def __init__(self, sandbox: Sandbox | None = None, **options: Any) -> None:
        fields = {name: options.pop(name) for name in list(options) if name in type(self).model_fields}
        if sandbox is not None and options:
            raise InvalidArgumentError("sandbox and its options are both given", "pass the options to Sandbox")
        super().__init__(**fields)
        self._owns_sandbox = sandbox is None
        self._sandbox = Sandbox(**options) if sandbox is None else sandbox

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox; it is made with the first call."""
        return self._sandbox

    def close(self) -> None:
        """Ends the sandbox, unless it was given to the constructor."""
        if self._owns_sandbox:
            self._sandbox.close()

    def _run(self, **arguments: Any) -> tuple[Content, Run]:
        try:
            run = _sync.drive(self._operation(self._sandbox._core, **arguments))
        except SandcellError as error:
            raise self._error(error) from error
        return _content(run), run

    async def _arun(self, **arguments: Any) -> tuple[Content, Run]:
        try:
            run = await _async.drive(self._operation(self._sandbox._core, **arguments))
        except SandcellError as error:
            raise self._error(error) from error
        return _content(run), run

    def _operation(self, core: Core, **arguments: Any) -> Operation[Run]:
        raise NotImplementedError

    def _error(self, error: SandcellError) -> Exception:
        return ToolException(str(error)) if self.handle_tool_error else error.copy()

    def __enter__(self: T) -> T:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class SandcellInterpreter(_SandboxTool):
    """Runs code in one session: variables, imports and files stay from call to call.

    The arguments are those of ``Sandbox`` (``language``, ``packages``, ``timeout``, ``memory_mb``, …), or ``sandbox``,
    and those of a LangChain tool (``name``, ``description``, …). The artifact of an answer is the ``Run``.
    """

    name: str = "run_code"
    description: str = (
        "Runs Python code in a sandbox and returns its output, its plots and the value of its last expression. "
        "Variables, imports and files stay for the next call."
    )
    args_schema: Any = _Code

    def _operation(self, core: Core, **arguments: Any) -> Operation[Run]:
        if arguments.get("packages"):
            yield from core.install(tuple(arguments["packages"]), core.language, 300.0)
        return (yield from core.run(arguments["code"], None, None, None, None, None, 1 << 20))


class SandcellShell(_SandboxTool):
    """Runs commands, each in a Bash of its own; files stay from call to call. The arguments are as above."""

    name: str = "run_command"
    description: str = "Runs a command in a sandbox and returns its output and exit code. Files stay for the next call."
    args_schema: Any = _Command

    def _operation(self, core: Core, **arguments: Any) -> Operation[Run]:
        return (yield from _commands.command(core, arguments["command"], None, None, None, None, None, None, 1 << 20))


def _content(run: Run) -> Content:
    """Returns the text that a model reads, and the pictures as image blocks."""
    text = run.text
    if run.cause is not None and run.status in ("timeout", "cancelled", "killed"):
        text += f"\n{run.cause.code}: {run.cause.message}"
    if not run.images:
        return text
    images = [create_image_block(base64=_base64(image.data), mime_type=image.mime) for image in run.images]
    return [create_text_block(text), *images]
