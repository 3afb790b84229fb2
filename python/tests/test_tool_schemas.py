"""Functions as tools, without a server: their schemas, and the conversion of arguments and return values."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import logging
import math
import pathlib
import sys
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NewType, Optional, TypedDict, Union

import pytest

import sandcell
from sandcell import AsyncSandbox, Sandbox
from sandcell._functions import FunctionSet

if typing.TYPE_CHECKING:
    from decimal import Decimal


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Shape(enum.Enum):
    DOT = (0, 0)
    LINE = (0, 1)


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0
    tags: list[str] = dataclasses.field(default_factory=list)
    length: float = dataclasses.field(init=False, default=0.0)


@dataclasses.dataclass
class Tree:
    name: str
    children: list[Tree] = dataclasses.field(default_factory=list)


class Movie(TypedDict, total=False):
    title: str
    year: int
    shown: datetime.date


UserId = NewType("UserId", int)


def offer(function: Any) -> FunctionSet:
    return FunctionSet({"f": function}, False)


def schema_of(function: Any) -> dict[str, Any]:
    found: dict[str, Any] = offer(function).specifications()[0]["input_schema"]
    return found


def schema_of_type(annotation: Any) -> Any:
    def function(value):  # type: ignore[no-untyped-def]
        pass

    function.__annotations__ = {"value": annotation}
    return schema_of(function)["properties"]["value"]


def called(function: Any, **arguments: Any) -> Any:
    """Returns the value that code gets, or the text of the error."""
    body, _ = offer(function).call("f", arguments)
    return body["value"] if "value" in body else body["error"]


def got(annotation: Any, value: Any) -> Any:
    """Returns what a function with a parameter of this type gets for a value of JSON."""
    seen = []

    def function(value):  # type: ignore[no-untyped-def]
        seen.append(value)

    function.__annotations__ = {"value": annotation}
    assert called(function, value=value) is None
    return seen[0]


NUMBERS = {"type": "array", "items": {"type": "integer"}}
NULL = {"type": "null"}


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (str, {"type": "string"}),
        (None, NULL),
        (Any, {}),
        (object, {}),
        (list, {"type": "array"}),
        (typing.__dict__["List"], {"type": "array"}),
        (list[int], NUMBERS),
        (typing.__dict__["List"][int], NUMBERS),
        (Sequence[int], NUMBERS),
        (set[int], NUMBERS),
        (tuple[int, ...], NUMBERS),
        (tuple[int, str], {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]}),
        (tuple, {"type": "array"}),
        (dict, {"type": "object"}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (typing.__dict__["Dict"][str, Any], {"type": "object"}),
        (Mapping[str, list[int]], {"type": "object", "additionalProperties": NUMBERS}),
        (Optional[int], {"anyOf": [{"type": "integer"}, NULL]}),
        (Union[int, str], {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (Optional[Any], {}),
        (Literal["a", 2, None], {"enum": ["a", 2, None]}),
        (Literal[Color.RED], {"enum": ["red"]}),
        (Color, {"enum": ["red", "blue"]}),
        (Level, {"enum": [1, 2]}),
        (Shape, {"enum": ["DOT", "LINE"]}),
        (datetime.datetime, {"type": "string", "format": "date-time"}),
        (datetime.date, {"type": "string", "format": "date"}),
        (datetime.time, {"type": "string", "format": "time"}),
        (pathlib.Path, {"type": "string"}),
        (UserId, {"type": "integer"}),
        (typing.TypeVar("Number", bound=int), {"type": "integer"}),
        (typing.TypeVar("Free"), {}),
        (Annotated[int, "seconds"], {"type": "integer", "description": "seconds"}),
        (sys.__class__, {}),
        ("no such name", {}),
    ],
    ids=str,
)
def test_types_have_schemas(annotation: Any, schema: dict[str, Any]) -> None:
    found = schema_of_type(annotation)
    assert {**found, **schema} == found
    assert not set(found) - set(schema) - {"minItems", "maxItems"}


def test_unions_of_the_new_form_have_schemas_on_every_python() -> None:
    def function(a: int | None, b: list[str | int] | None = None, c: Decimal | None = None, d: dict[str, int] = {}) -> None:  # noqa: B006
        pass

    assert schema_of(function)["properties"] == {
        "a": {"anyOf": [{"type": "integer"}, NULL]},
        "b": {
            "anyOf": [{"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}, NULL],
            "default": None,
        },
        "c": {"default": None},
        "d": {"type": "object", "additionalProperties": {"type": "integer"}, "default": {}},
    }


def test_dataclasses_and_typed_dicts_are_objects() -> None:
    assert schema_of_type(Point) == {
        "type": "object",
        "properties": {
            "x": {"type": "number"},
            "y": {"type": "number", "default": 0.0},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["x"],
        "additionalProperties": False,
    }
    movie = schema_of_type(Movie)
    assert "required" not in movie
    assert movie["properties"]["year"] == {"type": "integer"}
    children = schema_of_type(Tree)["properties"]["children"]
    assert children == {"type": "array", "items": {"type": "object"}}


def test_parameters_become_properties_with_defaults() -> None:
    def function(a: int, /, b: Color = Color.BLUE, *, c: Any = object(), **rest: int) -> None:  # noqa: B008
        pass

    schema = schema_of(function)
    assert schema["properties"] == {"a": {"type": "integer"}, "b": {"enum": ["red", "blue"], "default": "blue"}, "c": {}}
    assert schema["required"] == ["a"]
    assert schema["additionalProperties"] == {"type": "integer"}
    assert schema_of(lambda: None) == {"type": "object", "properties": {}, "additionalProperties": False}
    assert schema_of(lambda **rest: None)["additionalProperties"] is True


def google(city: str, days: int = 1) -> str:
    """Returns the weather of a city,
    for some days.

    More words.

    Args:
        city (str): its name, as
            people say it
        days: how many

    Returns:
        A text.
    """
    return city * days


def numpy_style(city: str, days: int = 1) -> str:
    """Returns the weather of a city, for some days.

    Parameters
    ----------
    city : str
        its name, as
        people say it

        An unrelated remark.
    days : int, optional
        how many

    Returns
    -------
    str
        A text.
    """
    return city * days


def rest_style(city: str, days: int = 1) -> str:
    """Returns the weather of a city, for some days.

    :param str city: its name, as
        people say it
    :param days: how many
    :returns: a text
    """
    return city * days


@pytest.mark.parametrize("function", [google, numpy_style, rest_style])
def test_docstrings_describe_functions_and_parameters(function: Any) -> None:
    found = offer(function).specifications()[0]
    assert found["description"] == "Returns the weather of a city, for some days."
    properties = found["input_schema"]["properties"]
    assert properties["city"]["description"] == "its name, as people say it"
    assert properties["days"] == {"type": "integer", "description": "how many", "default": 1}


class Shop:
    def __init__(self, name: str) -> None:
        self.name = name

    def sell(self, count: int) -> str:
        """Sells."""
        return f"{self.name} {count}"

    def __call__(self, count: int) -> str:
        return self.sell(count)


def test_bound_methods_partials_and_decorated_functions_work() -> None:
    shop = Shop("pears")
    assert FunctionSet([shop.sell], False).specifications()[0]["name"] == "sell"
    assert schema_of(shop.sell)["properties"] == {"count": {"type": "integer"}}
    assert called(shop.sell, count=2) == "pears 2"
    assert called(shop, count=2) == "pears 2"
    partial = functools.partial(google, days=2)
    assert FunctionSet([partial], False).specifications()[0]["name"] == "google"
    assert schema_of(partial)["properties"]["days"]["default"] == 2
    assert called(partial, city="x") == "xx"
    assert list(schema_of(functools.partial(google, "x"))["properties"]) == ["days"]
    cached = functools.lru_cache(google)
    assert schema_of(cached)["properties"]["city"]["type"] == "string"
    assert called(cached, city="x") == "x"


def variadic(*values: int) -> None:
    pass


def takes_bytes(data: bytes) -> None:
    pass


def _private() -> None:
    pass


@pytest.mark.parametrize(
    "tools",
    [
        5,
        None,
        "google",
        google,
        [5],
        ["google"],
        [Point],
        [lambda: None],
        [Shop("x")],
        [variadic],
        [takes_bytes],
        [_private],
        [google, google],
        {"not a name": google},
        {"class": google},
        {"é": google},
        {"": google},
        {"a" * 65: google},
        {5: google},
        {"f": 5},
        {f"f{number}": google for number in range(129)},
    ],
    ids=lambda tools: repr(tools)[:40],
)
def test_what_cannot_be_a_tool_is_refused_when_the_object_is_made(tools: Any) -> None:
    for kind in (Sandbox, AsyncSandbox):
        with pytest.raises(sandcell.InvalidArgumentError) as caught:
            kind(tools=tools)
        assert caught.value.remedy


def test_a_schema_that_is_too_large_is_refused() -> None:
    many = dataclasses.make_dataclass("Many", [(f"field{number}", "int") for number in range(5000)])

    def function(value):  # type: ignore[no-untyped-def]
        pass

    function.__annotations__ = {"value": many}
    with pytest.raises(sandcell.InvalidArgumentError, match="schema"):
        Sandbox(tools=[function])


def test_no_tools_are_a_plain_sandbox() -> None:
    nothing: tuple[Any, ...] = ((), [], {}, iter([]))
    for empty in nothing:
        assert Sandbox(tools=empty)._core._functions is None


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (int, 2.0, 2),
        (float, 2, 2.0),
        (str, "x", "x"),
        (Any, {"a": [1]}, {"a": [1]}),
        (Color, "red", Color.RED),
        (Shape, "LINE", Shape.LINE),
        (Level, 2, Level.HIGH),
        (Literal[Color.RED, "other"], "red", Color.RED),
        (datetime.datetime, "2026-01-02T03:04:05", datetime.datetime(2026, 1, 2, 3, 4, 5)),
        (datetime.datetime, "2026-01-02T03:04:05Z", datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)),
        (datetime.date, "2026-01-02", datetime.date(2026, 1, 2)),
        (datetime.time, "03:04", datetime.time(3, 4)),
        (pathlib.Path, "/tmp", pathlib.Path("/tmp")),
        (Optional[Color], None, None),
        (Optional[Color], "blue", Color.BLUE),
        (Union[datetime.date, str], "today", "today"),
        (Union[str, int], 5, 5),
        (Union[Movie, Point], {"x": 1}, Point(1.0)),
        (list[Color], ["red", "blue"], [Color.RED, Color.BLUE]),
        (set[int], [1, 1, 2], {1, 2}),
        (frozenset, [1], frozenset([1])),
        (tuple[int, ...], [1, 2], (1, 2)),
        (tuple[Color, int], ["red", 2], (Color.RED, 2)),
        (dict[int, Color], {"1": "red"}, {1: Color.RED}),
        (Point, {"x": 1, "tags": ["a"]}, Point(1.0, 0.0, ["a"])),
        (list[Point], [{"x": 1}], [Point(1.0)]),
        (Movie, {"title": "M", "shown": "1931-05-11"}, {"title": "M", "shown": datetime.date(1931, 5, 11)}),
        (Tree, {"name": "a", "children": [{"name": "b"}]}, Tree("a", [Tree("b")])),
    ],
    ids=str,
)
def test_arguments_become_what_the_annotation_names(annotation: Any, value: Any, expected: Any) -> None:
    found = got(annotation, value)
    assert found == expected
    assert type(found) is type(expected)


def test_arguments_reach_each_kind_of_parameter() -> None:
    def function(a: int, b: Color = Color.RED, /, c: int = 3, *, d: int = 4, **rest: Color) -> list[Any]:
        return [a, b, c, d, rest]

    assert called(function, a=1) == [1, "red", 3, 4, {}]
    assert called(function, d=7, a=1, b="blue", x="red") == [1, "blue", 3, 7, {"x": "red"}]


def test_an_argument_that_cannot_be_converted_is_named() -> None:
    def function(day: datetime.date) -> None:
        raise AssertionError

    assert called(function, day="tomorrow").startswith("ValueError: the argument day: ValueError: ")


class Number:
    """Looks like a scalar of numpy."""

    ndim = 0

    def item(self) -> int:
        return 7


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (1.5, 1.5),
        ("é", "é"),
        ((1, [2]), [1, [2]]),
        ({"a": {"b": 1}, 2: 3, None: 4, Color.RED: 5}, {"a": {"b": 1}, "2": 3, "null": 4, "red": 5}),
        (Point(1.0, 2.0, ["a"]), {"x": 1.0, "y": 2.0, "tags": ["a"], "length": 0.0}),
        ([Color.RED, Level.HIGH, Shape.DOT], ["red", 2, "DOT"]),
        (datetime.datetime(2026, 1, 2), "2026-01-02T00:00:00"),
        (pathlib.PurePosixPath("/a"), "/a"),
        (Number(), 7),
        ((1 << 64) - 1, (1 << 64) - 1),
    ],
    ids=repr,
)
def test_values_of_json_are_returned(value: Any, expected: Any) -> None:
    assert called(lambda: value) == expected


class Frame:
    def to_dict(self) -> dict[str, int]:
        return {}


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (b"x", "type bytes has no JSON form: return base64.b64encode"),
        ({"a": [b"x"]}, "type bytes"),
        ({1, 2}, "a list, such as sorted"),
        (Frame(), "value.to_dict()"),
        (iter([1]), "list(value)"),
        (object(), "a dict, list, text or number"),
        (1j, "type complex"),
        (math.nan, "None or text"),
        ([math.inf], "None or text"),
        (1 << 64, "64 bits"),
        ({(1, 2): 3}, "a key of a dict"),
        ("\ud800", "surrogate"),
        (CYCLE, "contains itself"),
        ("x" * (8 << 20), "at most 8,388,608"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_other_values_are_refused_with_what_to_return(value: Any, told: str) -> None:
    text = called(lambda: value)
    assert text.startswith(("TypeError: f returned", "ValueError: f returned"))
    assert told in text


class BadText(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero"),
        (KeyError("x"), "KeyError: 'x'"),
        (ValueError(), "ValueError"),
        (SystemExit(3), "SystemExit: 3"),
        (BadText(), "BadText"),
        (ValueError("\ud800"), "ValueError: \\ud800"),
    ],
    ids=repr,
)
def test_exceptions_become_their_type_and_message(error: BaseException, text: str, caplog: pytest.LogCaptureFixture) -> None:
    def function() -> None:
        raise error

    with caplog.at_level(logging.DEBUG, "sandcell"):
        assert called(function) == text
    assert caplog.records[-1].levelno == logging.DEBUG
    assert caplog.records[-1].exc_info


def test_long_messages_are_cut() -> None:
    def function() -> None:
        raise ValueError("x" * 10_000)

    assert len(called(function)) == 4000


def test_coroutine_functions_have_a_loop_of_their_own() -> None:
    import asyncio

    async def function(a: int) -> int:
        await asyncio.sleep(0)
        return a + 1

    assert called(function, a=1) == 2
