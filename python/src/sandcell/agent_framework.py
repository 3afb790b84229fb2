"""Lets agents of Microsoft's Agent Framework run code in sandboxes.

>>> from agent_framework import Agent
>>> from sandcell.agent_framework import SandcellCodeActProvider
>>> async with SandcellCodeActProvider(memory_mb=1024) as provider:
...     agent = Agent(client, context_providers=[provider])
...     await agent.run("…", session=agent.create_session())

The Agent Framework is imported here, and nowhere else in the package. Tested with agent-framework-core 1.23.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Literal
from weakref import WeakKeyDictionary

from agent_framework import AgentSession, Content, ContextProvider, FunctionTool, SessionContext

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

#: Refusals that the author of the code can do something about.
_REFUSALS = (CodeRejectedError, InvalidArgumentError, LanguageUnavailableError)
_DESCRIPTION = (
    "Runs code in an isolated sandbox and returns its output, the value of the last expression and pictures. "
    "Variables, imports and files stay from call to call. Files belong into the current folder."
)
_INSTRUCTIONS = (
    "You can run code with `execute_code`. Use it to compute, to work with files and to check results, "
    "and prefer one call with control flow to many small ones. The code has no network unless it was allowed."
)
_PARAMETERS = {
    "type": "object",
    "properties": {
        "code": {"type": "string", "description": "The code to run."},
        "language": {"type": "string", "description": "The language, such as python or bash.", "default": "python"},
    },
    "required": ["code"],
    "additionalProperties": False,
}

ApprovalMode = Literal["always_require", "never_require"]


class SandcellExecuteCodeTool(FunctionTool):  # type: ignore[misc]
    """The tool ``execute_code``, with a sandbox of its own. The other arguments are those of ``Sandbox``.

    It serves one conversation. The sandbox is made by the first call, and ended by :meth:`close`.
    """

    def __init__(self, *, approval_mode: ApprovalMode = "never_require", **options: Any) -> None:
        self._options = options
        #: The sandbox. One that has ended by itself is replaced at the next call.
        self.sandbox = AsyncSandbox(**options)
        super().__init__(
            name="execute_code",
            description=_DESCRIPTION,
            approval_mode=approval_mode,
            func=self._execute,
            input_model=_PARAMETERS,
        )

    async def _execute(self, code: str, language: str = "python") -> list[Content]:
        try:
            run = await self.sandbox.run(code, language=language)
        except _REFUSALS as error:
            return [Content.from_text(str(error))]
        except (ExpiredError, NotFoundError, SessionLostError) as error:
            if self.sandbox.closed:
                raise
            self.sandbox = AsyncSandbox(**self._options)
            return [Content.from_text(f"{error.code}: {error.message}\nVariables and files are gone: start again.")]
        pictures = [Content.from_data(data=image.data, media_type=image.mime) for image in run.images]
        return [Content.from_text(text_for_model(run)), *pictures]

    async def close(self) -> None:
        """Ends the sandbox. Closing twice does nothing."""
        await self.sandbox.close()

    async def __aenter__(self) -> SandcellExecuteCodeTool:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


class SandcellCodeActProvider(ContextProvider):  # type: ignore[misc]
    """Gives each session of an agent the tool ``execute_code`` with a sandbox of its own, and instructions for it.

    The arguments after ``source_id`` are those of :class:`SandcellExecuteCodeTool`. A sandbox ends with its
    ``AgentSession`` object, and all end with :meth:`close`.
    """

    def __init__(self, source_id: str = "sandcell_codeact", **options: Any) -> None:
        super().__init__(source_id)
        self._options = options
        self._tools: WeakKeyDictionary[AgentSession, SandcellExecuteCodeTool] = WeakKeyDictionary()
        self._closed = False
        SandcellExecuteCodeTool(**options)  # Wrong options are named here, not in the middle of a conversation.

    def tool(self, session: AgentSession) -> SandcellExecuteCodeTool:
        """Returns the tool of a session, for instance to reach ``tool(session).sandbox.files``."""
        if self._closed:
            raise ExpiredError("this provider is closed", "make a new SandcellCodeActProvider")
        if session not in self._tools:
            self._tools[session] = SandcellExecuteCodeTool(**self._options)
        return self._tools[session]

    async def before_run(self, *, agent: Any, session: AgentSession, context: SessionContext, state: dict[str, Any]) -> None:
        """Adds the tool and its instructions to a run."""
        context.extend_instructions(self.source_id, _INSTRUCTIONS)
        context.extend_tools(self.source_id, [self.tool(session)])

    async def close(self) -> None:
        """Ends the sandboxes of all sessions. Closing twice does nothing."""
        self._closed = True
        for tool in list(self._tools.values()):
            await tool.close()

    async def __aenter__(self) -> SandcellCodeActProvider:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
