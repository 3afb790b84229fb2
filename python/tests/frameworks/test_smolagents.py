"""The adapter for smolagents, with the real package."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("smolagents", reason="needs smolagents")

if TYPE_CHECKING:
    from sandcell.smolagents import SandcellExecutor


@pytest.fixture
def executor() -> Iterator[SandcellExecutor]:
    from sandcell.smolagents import SandcellExecutor

    with SandcellExecutor(timeout=20) as executor:
        yield executor


def test_an_agent_answers_with_what_its_code_computed() -> None:
    from smolagents import ChatMessage, CodeAgent, MessageRole, Model, tool

    from sandcell.smolagents import SandcellExecutor

    @tool  # type: ignore[untyped-decorator]
    def double(number: int) -> int:
        """Doubles a number.

        Args:
            number: The number.
        """
        return 2 * number

    steps = [
        "<code>\nx = double(number=20)\nprint('x is', x)\n</code>",
        "<code>\nfinal_answer({'x': x + start, 'list': [1, 2], 'long': 'é' * 5000})\n</code>",
    ]
    seen: list[str] = []

    class Scripted(Model):  # type: ignore[misc]
        def generate(self, messages: Any, **_: Any) -> ChatMessage:
            seen.append(str(messages[-1]))
            return ChatMessage(role=MessageRole.ASSISTANT, content=steps.pop(0))

    with SandcellExecutor() as executor:
        agent = CodeAgent(tools=[double], model=Scripted(), executor=executor, max_steps=2, verbosity_level=0)
        answer = agent.run("double it", additional_args={"start": 2})
    assert answer == {"x": 42, "list": [1, 2], "long": "é" * 5000}
    assert "x is 40" in seen[1]


def test_values_and_logs_come_back_apart(executor: SandcellExecutor) -> None:
    output = executor("print('log')\n6 * 7")
    assert (output.output, output.logs, output.is_final_answer) == ("42", "log\n", False)


def test_an_error_of_the_code_is_an_agent_error(executor: SandcellExecutor) -> None:
    from smolagents.utils import AgentError

    with pytest.raises(AgentError, match="ZeroDivisionError"):
        executor("print('before')\n1 / 0")
    executor.sandbox._core.timeout = 0.3
    with pytest.raises(AgentError, match="timeout"):
        executor("while True: pass")


def test_output_that_looks_like_an_answer_is_none(executor: SandcellExecutor) -> None:
    output = executor("print('FinalAnswerException: safe:1')")
    assert not output.is_final_answer
