"""The operations on alternatives: several pieces of code run at the same time, each in a branch of one sandbox."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from . import _check, _checkpoints
from ._call import Call
from ._errors import ExpiredError, InternalError, InvalidArgumentError, SandcellError
from ._operations import _ANSWER_TIMEOUT, Core, Operation, T, call_tool
from ._results import Alternative, FileChanges, Run, VariableChange

#: The checkpoint that each branch makes before its code.
_BEFORE = "before-alternative"
#: The server's objects of variables, by language and name.
_Variables = dict[tuple[str, str], dict[str, Any]]


class Tried(NamedTuple):
    """A branch, and what its code did."""

    core: Core
    run: Run
    files: FileChanges
    variables: tuple[VariableChange, ...]


def try_many(core: Core, codes: Any, language: Any, timeout: Any, max_output: Any) -> Operation[list[Tried]]:
    """Makes a branch for each piece of code, and runs the code there. If that fails, all branches are ended."""
    sources = _check.texts("codes", codes)
    if not sources:
        raise InvalidArgumentError("codes is empty", 'pass a list of code, such as ["x = 1", "x = 2"]')
    if core.has_functions:
        raise InvalidArgumentError(
            "alternatives cannot run in a sandbox with tools: the functions stay with it",
            "try them in a sandbox without tools, or run them one after another with checkpoint() and rewind()",
        )
    branches = yield from _checkpoints.branch(core, len(sources), None)
    try:
        # All branches begin with the same variables.
        before = yield from _variables(branches[0])
        attempts = [_attempt(one, before, code, language, timeout, max_output) for one, code in zip(branches, sources)]
        return (yield from at_once(attempts))
    except BaseException:
        for one in branches:
            one.abandon()
        raise


def _attempt(core: Core, before: _Variables, code: str, language: Any, timeout: Any, max_output: Any) -> Operation[Tried]:
    run = yield from core.run(code, language, None, timeout, None, None, max_output, _BEFORE)
    try:
        files = yield from _checkpoints.changes(core, _BEFORE)
        variables = tuple(_compared(before, (yield from _variables(core))))
    except SandcellError:
        # The code took its sandbox with it, or used so much memory that the state before it was dropped. The run tells.
        files, variables = FileChanges(), ()
    return Tried(core, run, files, variables)


def _variables(core: Core) -> Operation[_Variables]:
    """Returns the variables of all sessions by language and name."""
    status = yield from core.status()
    return {
        (str(session.get("language")), str(variable.get("name"))): variable
        for session in status.get("sessions", ())
        for variable in session.get("variables") or ()
    }


def _compared(before: _Variables, after: _Variables) -> list[VariableChange]:
    changed = [
        VariableChange("modified" if name in before else "created", variable)
        for name, variable in after.items()
        if before.get(name) != variable
    ]
    return changed + [VariableChange("removed", before[name]) for name in before if name not in after]


def keep(core: Core, found: Sequence[Alternative[Any]], alternative: object) -> Operation[None]:
    """Lets the sandbox go on as the branch of an alternative. Its old processes and the other branches end."""
    tried = next((one.sandbox._core for one in found if one is alternative), None)
    if tried is None:
        raise InvalidArgumentError("this is none of the alternatives", "pass one of the list, such as found[0]")
    if core.closed or tried.closed:
        raise ExpiredError("the sandbox or this alternative was closed or kept before", "try the code again")
    # Raises if the branch has ended. Then the sandbox stays as it was.
    yield from tried.status()
    core.id, old = tried.id, core.id
    tried.closed = True
    yield from at_once([close_quietly(core, old), close(found)])


def close_quietly(core: Core, sandbox: str | None) -> Operation[None]:
    """Ends a sandbox by its id, if it is still there."""
    try:
        yield from call_tool(core.channel, "close_sandbox", {"sandbox_id": sandbox}, _ANSWER_TIMEOUT)
    except SandcellError as error:
        if error.code not in ("not_found", "expired"):
            raise


def close(found: Sequence[Alternative[Any]]) -> Operation[None]:
    """Ends the branches. If some cannot be ended, it ends the others and then raises the first error."""
    live = [one.sandbox._core for one in found if not one.sandbox.closed]
    try:
        errors = yield from at_once([_error_of(core.close()) for core in live])
    except BaseException:
        for core in live:
            core.closed = False
            core.abandon()
        raise
    for error in errors:
        if error is not None:
            raise error


def _error_of(operation: Operation[None]) -> Operation[SandcellError | None]:
    try:
        yield from operation
    except SandcellError as error:
        return error
    return None


def at_once(operations: Sequence[Operation[T]]) -> Operation[list[T]]:
    """Carries operations out at the same time, and returns their results in their order.

    If one fails, the others are ended and its exception is raised.
    """
    results: dict[int, T] = {}
    waiting: dict[int, tuple[Call, float]] = {}
    # Finished as soon as one of the awaited calls is.
    wake = Call()

    def go_on(number: int, answer: Any) -> None:
        try:
            effect = operations[number].send(answer)
        except StopIteration as end:
            results[number] = end.value
            return
        if not isinstance(effect, tuple):
            raise InternalError("an operation awaits something next to others", "report this as a fault")
        call, seconds = effect
        waiting[number] = (call, time.monotonic() + seconds)
        call.on_done(lambda: wake.finish())

    try:
        for number in range(len(operations)):
            go_on(number, None)
        while waiting:
            now = time.monotonic()
            ready = [number for number, (call, deadline) in waiting.items() if call.done or deadline <= now]
            for number in ready:
                call, _ = waiting.pop(number)
                go_on(number, call.done)
            if ready:
                continue
            wake = Call()
            if not any(call.done for call, _ in waiting.values()):
                yield wake, min(deadline for _, deadline in waiting.values()) - now
    except BaseException:
        for operation in operations:
            operation.close()
        raise
    return [results[number] for number in range(len(operations))]
