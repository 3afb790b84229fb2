"""Checks of arguments before anything is sent: the wrong type is named here, with an example of the right one."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from typing import Any

from ._errors import InvalidArgumentError

#: Seconds that code may ask for; the server has a limit of its own below.
_MAX_SECONDS = 1e6


def text(name: str, value: Any) -> str:
    """Returns the value if it is text."""
    if isinstance(value, str):
        return value
    raise _wrong(name, "a str", value)


def optional_text(name: str, value: Any) -> str | None:
    """Returns the value if it is text or None."""
    return None if value is None else text(name, value)


def checkpoint_name(name: str, value: Any) -> str:
    """Returns the name of a checkpoint. The server checks it further; it takes an empty one as none, and -1 as a count."""
    found = text(name, value)
    if not found or found.startswith("-"):
        raise InvalidArgumentError(f"{name} is {found!r}", "pass a name that begins with a letter or digit")
    return found


def texts(name: str, value: Any) -> list[str]:
    """Returns a list of texts. One text alone is refused: it would be taken for a list of letters."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise _wrong(name, 'a list of str, such as ["numpy"]', value)
    return [text(f"{name}[{index}]", item) for index, item in enumerate(value)]


def text_map(name: str, value: Any) -> dict[str, str]:
    """Returns a dict of texts."""
    if not isinstance(value, Mapping):
        raise _wrong(name, 'a dict of str, such as {"NAME": "value"}', value)
    return {text(f"a key of {name}", key): text(f"{name}[{key!r}]", item) for key, item in value.items()}


def seconds(name: str, value: Any) -> float:
    """Returns a time in seconds, above 0."""
    found = _number(name, value)
    if not 0 < found <= _MAX_SECONDS:
        raise InvalidArgumentError(f"{name} is {value!r}", f"pass seconds above 0 and up to {_MAX_SECONDS:,.0f}")
    return found


def positive(name: str, value: Any) -> float | None:
    """Returns a number above 0, or None."""
    if value is None:
        return None
    found = _number(name, value)
    if found <= 0:
        raise InvalidArgumentError(f"{name} is {value!r}", "pass a number above 0, or leave it out for the default")
    return found


def count(name: str, value: Any) -> int | None:
    """Returns an int above 0, or None."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong(name, "an int", value)
    if not 0 < value < 1 << 53:
        raise InvalidArgumentError(f"{name} is {value!r}", "pass an int above 0, or leave it out for the default")
    return value


def data(name: str, value: Any) -> bytes:
    """Returns bytes, or text as UTF-8."""
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgumentError(
                f"{name} holds a lone surrogate at position {error.start}", "pass bytes, or encode it yourself"
            ) from None
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise _wrong(name, "bytes or str", value)


def path(name: str, value: Any) -> str:
    """Returns a path inside the sandbox."""
    found = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(found, str):
        raise _wrong(name, "a str", value)
    if not found or "\0" in found:
        raise InvalidArgumentError(f"{name} is {found!r}", "name a file; relative paths start at /home/user")
    data(name, found)
    return found


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _wrong(name, "a number", value)
    try:
        if math.isfinite(value):
            return value
    except OverflowError:
        pass
    raise InvalidArgumentError(f"{name} is no finite number that fits into 64 bits", "pass a smaller number")


def _wrong(name: str, wanted: str, value: Any) -> InvalidArgumentError:
    return InvalidArgumentError(f"{name} must be {wanted}, not {type(value).__name__}", f"pass {wanted}")
