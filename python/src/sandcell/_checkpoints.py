"""The operations on checkpoints: kept states of a sandbox."""

from __future__ import annotations

from typing import Any

from . import _check
from ._call import Channel
from ._errors import InternalError, InvalidArgumentError
from ._operations import _ANSWER_TIMEOUT, _VERSIONS, _WAIT, Core, Operation, _saved_name, call_tool, given, structured
from ._results import Checkpoint, FileChange, FileChanges, Rewind, Saved, about

#: Seconds for the server to write a state to its disk.
_SAVE_TIMEOUT = 300.0
#: The largest count that every JSON parser reads exactly.
_MAX_COUNT = (1 << 53) - 1


def create(core: Core, name: Any) -> Operation[Checkpoint]:
    """Keeps the state of the sandbox."""
    wanted = None if name is None else _check.checkpoint_name("name", name)
    answer = yield from core.tool("create_checkpoint", given({"name": wanted}))
    return Checkpoint(structured(answer)["checkpoint"])


def existing(core: Core) -> Operation[list[Checkpoint]]:
    """Returns the checkpoints of the sandbox, oldest first."""
    status = yield from core.status()
    return [Checkpoint(data) for data in status.get("checkpoints", ())]


def rewind(core: Core, to: Any) -> Operation[Rewind]:
    """Brings back the state of a checkpoint."""
    answer = yield from core.tool("reset_session_state", {"to": _target(to)})
    data = about(answer, "sandcell/rewind")
    if not isinstance(data.get("checkpoint"), dict):
        raise InternalError("the server did not say what it has brought back", _VERSIONS)
    return Rewind(data)


def changes(core: Core, since: Any) -> Operation[FileChanges]:
    """Compares the files with those of a checkpoint."""
    data = structured((yield from core.tool("file_changes", {"since": _target(since)})))
    found = FileChanges(FileChange(one) for one in data["files"])
    found.more = data["omitted"]
    return found


def mount_changes(core: Core) -> Operation[FileChanges]:
    """Compares the files of copy-on-write mounts with the host's."""
    data = structured((yield from core.tool("file_changes", {})))
    mounts = data["mounts"]
    found = FileChanges(FileChange(one) for one in mounts["files"])
    found.more = mounts["omitted"]
    return found


def drop(core: Core, checkpoint: Any) -> Operation[None]:
    """Drops a checkpoint."""
    yield from core.tool("drop_checkpoint", {"name": _name("checkpoint", checkpoint)})


def branch(core: Core, count: Any, checkpoint: Any) -> Operation[list[Core]]:
    """Makes sandboxes that go on from the state of this one."""
    wanted = {
        "from_sandbox": (yield from core.open()),
        "from_checkpoint": None if checkpoint is None else _name("checkpoint", checkpoint),
        "count": _check.count("count", count) or 1,
        "wait_s": _WAIT,
    }
    answer = yield from call_tool(core.channel, "create_sandbox", given(wanted), _WAIT + _ANSWER_TIMEOUT)
    return [core.sibling(str(sandbox)) for sandbox in structured(answer)["sandbox_ids"]]


def save(core: Core, name: Any, checkpoint: Any, only_files: Any) -> Operation[Saved]:
    """Saves the state of the sandbox, or of a checkpoint of it."""
    wanted = {
        "name": _saved_name("name", name),
        "from_checkpoint": None if checkpoint is None else _name("checkpoint", checkpoint),
        "only_files": True if only_files else None,
    }
    answer = yield from core.tool("save_sandbox", given(wanted), _SAVE_TIMEOUT)
    return Saved(structured(answer)["saved"])


def saved(channel: Channel) -> Operation[list[Saved]]:
    """Returns the saved states, by name."""
    answer = yield from call_tool(channel, "list_saved", {}, _ANSWER_TIMEOUT)
    return [Saved(data) for data in structured(answer)["saved"]]


def drop_saved(channel: Channel, name: Any) -> Operation[None]:
    """Drops a saved state."""
    yield from call_tool(channel, "drop_saved", {"name": _saved_name("name", name)}, _ANSWER_TIMEOUT)


def _name(argument: str, value: Any) -> str:
    """Returns the name of a checkpoint, which is given as such or by its name."""
    if isinstance(value, Checkpoint):
        return value.name
    if isinstance(value, str):
        return _check.checkpoint_name(argument, value)
    raise InvalidArgumentError(
        f"{argument} must be a Checkpoint or a str, not {type(value).__name__}", "pass a Checkpoint or its name"
    )


def _target(to: Any) -> str:
    """Returns the state to bring back, as the server reads it: a name, or "-2" for before the last two executions."""
    if not isinstance(to, int) or isinstance(to, bool):
        return _name("to", to)
    if not 0 < abs(to) <= _MAX_COUNT:
        raise InvalidArgumentError(f"to is {to}", "pass 1 for the state before the last execution, 2 for one more")
    return f"-{abs(to)}"
