"""The JSON form of values that functions return. What JSON lacks is refused with what to return instead."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import math
import os
from collections.abc import Mapping
from typing import Any

#: Lists and dicts inside each other. The server's reader takes 128 levels, some of which are of the message.
_MAX_DEPTH = 64
#: The integers that JSON readers do not round.
_MIN_INTEGER, _MAX_INTEGER = -(1 << 63), (1 << 64) - 1


class Unfit(ValueError):
    """A value, or an annotation, has no JSON form."""


def json_value(value: Any, depth: int = 0) -> Any:
    """Returns a value of dicts, lists, texts, numbers, booleans and None. Raises ``Unfit`` for what has no JSON form."""
    if value is None or (isinstance(value, (str, bool, int, float)) and not isinstance(value, enum.Enum)):
        return _scalar(value)
    if depth > _MAX_DEPTH:
        raise Unfit(f"a value is nested more than {_MAX_DEPTH} levels deep, or contains itself: return a flatter one")
    if isinstance(value, enum.Enum):
        plain = value.value is None or isinstance(value.value, (str, int, float))
        return json_value(value.value if plain else value.name, depth + 1)
    if isinstance(value, (list, tuple)):
        return [json_value(item, depth + 1) for item in value]
    if isinstance(value, Mapping):
        return {_key(key): json_value(item, depth + 1) for key, item in value.items()}
    kind = type(value)
    if dataclasses.is_dataclass(kind):
        return {field.name: json_value(getattr(value, field.name), depth + 1) for field in dataclasses.fields(kind)}
    if isinstance(value, (datetime.date, datetime.time)) and value == value:  # NaT of pandas differs from itself.
        return value.isoformat()
    if isinstance(value, os.PathLike) and isinstance(path := os.fspath(value), str):
        return _scalar(path)
    if getattr(value, "ndim", None) == 0 and callable(getattr(kind, "item", None)):
        return json_value(value.item(), depth + 1)  # A number of numpy.
    if kind.__name__ == "DataFrame" and kind.__module__.split(".")[0] == "pandas":
        import json

        return json.loads(value.to_json(orient="records", date_format="iso", double_precision=15))
    raise Unfit(f"a value of type {_name(kind)} has no JSON form: return {_instead(value)}")


def _scalar(value: Any) -> Any:
    if isinstance(value, str):
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise Unfit(
                    "a text contains a lone surrogate, which is no valid text: decode the bytes with another encoding"
                ) from None
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise Unfit(f"JSON does not have {float(value)}: return None or text")
    elif isinstance(value, int) and not _MIN_INTEGER <= value <= _MAX_INTEGER:
        raise Unfit("an integer has more than 64 bits: return it as text")
    return value


def _key(key: Any) -> str:
    """Returns a key of a dict as text, as ``json`` makes it."""
    if isinstance(key, enum.Enum):
        key = key.value
    if isinstance(key, str):
        return str(_scalar(key))
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    if isinstance(key, (int, float)):
        return str(_scalar(key))
    if isinstance(key, (datetime.date, os.PathLike)):
        return str(json_value(key))
    raise Unfit(f"a key of a dict is of type {_name(type(key))}: return a dict whose keys are texts")


def _name(kind: type) -> str:
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _instead(value: Any) -> str:
    kind = type(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "base64.b64encode(value).decode(), or put them into a file of the sandbox with files.write"
    if isinstance(value, (set, frozenset)):
        return "a list, such as sorted(value)"
    for method, form in (
        ("model_dump", 'value.model_dump(mode="json")'),
        ("tolist", "value.tolist()"),
        ("to_list", "value.to_list()"),
        ("to_dicts", "value.to_dicts()"),
        ("to_dict", "value.to_dict()"),
    ):
        if callable(getattr(kind, method, None)):
            return form
    if hasattr(kind, "__next__"):
        return "list(value)"
    return "a dict, list, text or number made from it"
