"""JSON Schemas of annotations, and the conversion of JSON values to what an annotation names.

The server checks arguments against the schema before a function runs, so conversions trust the form of a value. An
annotation that has no JSON form here admits any value, which the function gets as it is.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import enum
import os
import pathlib
import sys
import types
import typing
from collections import abc
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Optional, Union

from ._values import Unfit, json_value

Convert = Optional[Callable[[Any], Any]]

#: Annotations inside annotations, before the rest admits any value.
_MAX_DEPTH = 32
#: Characters of a default or a description in a schema.
_MAX_DEFAULT = 1000
_MAX_DESCRIPTION = 1000


class Shape(NamedTuple):
    """The schema of an annotation, and the conversion from JSON; None where values pass as they are."""

    schema: dict[str, Any]
    convert: Convert = None


class Property(NamedTuple):
    """A parameter of a function, or a field of a class. ``default`` is empty where there is none."""

    shape: Shape
    required: bool
    default: Any = dataclasses.MISSING
    description: str = ""


_ANYTHING = Shape({})
_SCALARS: dict[Any, Shape] = {
    bool: Shape({"type": "boolean"}),
    # JSON has one kind of number: 1.0 is an integer of the schema, and 1 a number.
    int: Shape({"type": "integer"}, int),
    float: Shape({"type": "number"}, float),
    str: Shape({"type": "string"}),
    type(None): Shape({"type": "null"}),
    None: Shape({"type": "null"}),
}
#: The collections of a list of JSON, and what makes them of it; None where a list does.
_LISTS: dict[Any, Convert] = {
    list: None,
    abc.Iterable: None,
    abc.Collection: None,
    abc.Sequence: None,
    abc.MutableSequence: None,
    abc.Set: frozenset,
    abc.MutableSet: set,
    set: set,
    frozenset: frozenset,
    tuple: tuple,
    collections.deque: collections.deque,
}
_DICTS = (dict, abc.Mapping, abc.MutableMapping, collections.OrderedDict)
_UNIONS = (Union, getattr(types, "UnionType", Union))


class Shapes:
    """Makes shapes of annotations."""

    def __init__(self) -> None:
        self._depth = 0
        #: Classes whose description has begun. A class inside itself has no shape yet.
        self._classes: dict[type, Shape | None] = {}

    def of(self, annotation: Any) -> Shape:
        """Returns the shape of an annotation. Raises ``Unfit`` for one that no JSON value fits."""
        if self._depth >= _MAX_DEPTH:
            return _ANYTHING
        self._depth += 1
        try:
            return self._of(annotation)
        finally:
            self._depth -= 1

    def _of(self, annotation: Any) -> Shape:
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        if origin in _UNIONS:
            return self._union(arguments)
        if origin is typing.Literal:
            return _literal(arguments)
        if hasattr(annotation, "__metadata__"):
            return _described(self.of(arguments[0]), annotation.__metadata__)
        name = getattr(origin, "_name", None)
        if name in ("Required", "NotRequired", "ReadOnly", "Final", "ClassVar"):
            return self.of(arguments[0])
        inner = next((found for found in ("__supertype__", "__value__", "__bound__") if hasattr(annotation, found)), None)
        if inner is not None:  # NewType, the statement `type`, a type variable
            return self.of(getattr(annotation, inner)) if getattr(annotation, inner) is not None else _ANYTHING
        kind = annotation if origin is None else origin
        if isinstance(kind, abc.Hashable):
            if kind in _SCALARS:
                return _SCALARS[kind]
            if kind in _LISTS:
                return self._list(_LISTS[kind], kind, arguments)
            if kind in _DICTS:
                return self._dict(arguments)
        return self._class(kind) if isinstance(kind, type) else _ANYTHING

    def _union(self, options: tuple[Any, ...]) -> Shape:
        shapes = [self.of(option) for option in options]
        if not all(shape.schema for shape in shapes):
            return _ANYTHING
        schema = {"anyOf": [shape.schema for shape in shapes]}
        return Shape(schema, _first_fit(shapes) if any(shape.convert for shape in shapes) else None)

    def _list(self, make: Convert, kind: Any, arguments: tuple[Any, ...]) -> Shape:
        if kind is tuple and arguments and arguments[-1] is not Ellipsis and arguments != ((),):
            shapes = [self.of(argument) for argument in arguments]
            schema: dict[str, Any] = {"type": "array", "prefixItems": [shape.schema for shape in shapes]}
            schema.update(minItems=len(shapes), maxItems=len(shapes))
            return Shape(schema, lambda items: tuple(_converted(shape.convert, item) for shape, item in zip(shapes, items)))
        item = self.of(arguments[0]) if arguments and arguments != ((),) else _ANYTHING
        schema = {"type": "array", **({"items": item.schema} if item.schema else {})}
        each = item.convert
        if each is None:
            return Shape(schema, make)
        return Shape(schema, lambda items: (make or list)(each(value) for value in items))

    def _dict(self, arguments: tuple[Any, ...]) -> Shape:
        key, value = (self.of(argument) for argument in arguments) if len(arguments) == 2 else (_ANYTHING, _ANYTHING)
        schema = {"type": "object", **({"additionalProperties": value.schema} if value.schema else {})}
        if key.convert is None and value.convert is None:
            return Shape(schema)

        def convert(entries: dict[str, Any]) -> dict[Any, Any]:
            return {_converted(key.convert, name): _converted(value.convert, item) for name, item in entries.items()}

        return Shape(schema, convert)

    def _class(self, kind: type) -> Shape:
        if issubclass(kind, enum.Enum):
            return _enum(kind)
        if issubclass(kind, (bytes, bytearray, memoryview)):
            raise Unfit(f"{kind.__name__} has no JSON form: take a str, such as base64")
        if issubclass(kind, (datetime.date, datetime.time)):
            return _time(kind)
        if issubclass(kind, os.PathLike):
            return Shape({"type": "string"}, kind if issubclass(kind, pathlib.PurePath) else pathlib.Path)
        is_dict = issubclass(kind, dict) and hasattr(kind, "__required_keys__")
        if not is_dict and not dataclasses.is_dataclass(kind):
            return _ANYTHING
        if kind in self._classes:
            # A class inside itself: its conversion is known when the first value arrives.
            inner = Shape({"type": "object"}, lambda value: _converted((self._classes[kind] or _ANYTHING).convert, value))
            return self._classes[kind] or inner
        self._classes[kind] = None
        hints = hints_of(kind)
        properties: dict[str, Property] = {}
        if is_dict:
            required = getattr(kind, "__required_keys__", ())
            properties = {name: Property(self.of(hint), name in required) for name, hint in hints.items()}
        elif dataclasses.is_dataclass(kind):
            for field in dataclasses.fields(kind):
                if field.init:
                    made = field.default_factory is not dataclasses.MISSING
                    required = field.default is dataclasses.MISSING and not made
                    properties[field.name] = Property(self.of(hints.get(field.name, Any)), required, field.default)
        shape = Shape(object_schema(properties, False), _from_object(None if is_dict else kind, properties))
        self._classes[kind] = shape
        return shape


def object_schema(properties: dict[str, Property], additional: bool | dict[str, Any]) -> dict[str, Any]:
    """Returns the schema of an object."""
    schemas: dict[str, Any] = {}
    for name, each in properties.items():
        schema = dict(each.shape.schema)
        if each.description:
            schema["description"] = each.description[:_MAX_DESCRIPTION]
        if each.default is not dataclasses.MISSING:
            try:
                default = json_value(each.default)
            except Unfit:
                pass
            else:
                if len(repr(default)) <= _MAX_DEFAULT:
                    schema["default"] = default
        schemas[name] = schema
    required = [name for name, each in properties.items() if each.required]
    return {
        "type": "object",
        "properties": schemas,
        **({"required": required} if required else {}),
        "additionalProperties": additional,
    }


def _converted(convert: Convert, value: Any) -> Any:
    return value if convert is None else convert(value)


def _from_object(kind: type | None, properties: dict[str, Property]) -> Convert:
    """Returns the conversion of an object to a dataclass, or to a dict."""
    converts = {name: each.shape.convert for name, each in properties.items()}
    if kind is None and not any(converts.values()):
        return None

    def convert(entries: dict[str, Any]) -> Any:
        values = {name: _converted(converts.get(name), value) for name, value in entries.items()}
        return values if kind is None else kind(**values)

    return convert


def _described(shape: Shape, metadata: Iterable[Any]) -> Shape:
    """Returns the shape of ``Annotated``: a text there is a description."""
    texts = [text for text in metadata if isinstance(text, str)]
    return Shape({**shape.schema, "description": texts[0][:_MAX_DESCRIPTION]}, shape.convert) if texts else shape


def _literal(values: tuple[Any, ...]) -> Shape:
    named = [(value.value if isinstance(value, enum.Enum) else value, value) for value in values]
    if not all(isinstance(plain, (str, int, float, type(None))) for plain, _ in named):
        raise Unfit(f"a Literal of {values!r} has no JSON form: use texts and numbers")
    schema = {"enum": [plain for plain, _ in named]}
    if not any(isinstance(value, enum.Enum) for value in values):
        return Shape(schema)
    return Shape(schema, lambda value: next((found for plain, found in named if plain == value), value))


def _enum(kind: type[enum.Enum]) -> Shape:
    if issubclass(kind, enum.Flag):
        return Shape({"type": "integer"}, kind)
    values = [member.value for member in kind]
    if all(isinstance(value, (str, int, float, type(None))) for value in values):
        return Shape({"enum": values}, kind) if values else _ANYTHING
    return Shape({"enum": [member.name for member in kind]}, kind.__getitem__)


def _time(kind: type[datetime.date | datetime.time]) -> Shape:
    form = "time" if issubclass(kind, datetime.time) else "date-time" if issubclass(kind, datetime.datetime) else "date"

    def convert(text: str) -> Any:
        # Python reads the "Z" of other languages since 3.11.
        return kind.fromisoformat(text[:-1] + "+00:00" if text[-1:] in ("Z", "z") else text)

    return Shape({"type": "string", "format": form}, convert)


def _first_fit(shapes: list[Shape]) -> Convert:
    """Returns the conversion to the first type of a union that fits."""

    def convert(value: Any) -> Any:
        fault: Exception | None = None
        for shape in shapes:
            if _fits(shape.schema, value):
                try:
                    return _converted(shape.convert, value)
                except (ValueError, TypeError, LookupError) as error:
                    fault = fault or error
        if fault is not None:
            raise fault
        return value

    return convert


def _fits(schema: dict[str, Any], value: Any) -> bool:
    """Whether a value fits a schema at its first level."""
    if "enum" in schema:
        return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in schema["enum"])
    if "anyOf" in schema:
        return any(_fits(each, value) for each in schema["anyOf"])
    kind = schema.get("type")
    if kind in ("integer", "number"):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return number and (kind == "number" or value == int(value))
    if kind == "object" and isinstance(value, dict):
        known = schema.get("properties", value)
        return all(name in value for name in schema.get("required", ())) and all(name in known for name in value)
    wanted = {"boolean": bool, "string": str, "null": type(None), "array": list, "object": dict}.get(str(kind))
    return wanted is None or isinstance(value, wanted)


def hints_of(target: Any) -> dict[str, Any]:
    """Returns the annotations of a function or a class by name. One that cannot be evaluated is ``Any``."""
    try:
        return typing.get_type_hints(target, include_extras=True)
    except Exception:  # A name that only type checkers know, or a form that is too new for this Python.
        pass
    names = vars(sys.modules.get(getattr(target, "__module__", ""), types.ModuleType("none")))
    names = {**names, **getattr(target, "__globals__", {})}
    found: dict[str, Any] = {}
    for part in reversed(target.__mro__) if isinstance(target, type) else [target]:
        try:
            found.update(getattr(part, "__annotations__", {}))
        except Exception:  # Python 3.14 evaluates them here.
            pass
    return {name: _evaluated(annotation, names) for name, annotation in found.items()}


def _evaluated(annotation: Any, names: dict[str, Any]) -> Any:
    text = getattr(annotation, "__forward_arg__", annotation)
    if not isinstance(text, str):
        return annotation
    try:
        if sys.version_info < (3, 10):
            text = _with_unions(text)
        return eval(text, {**names, "__Union": Union})
    except Exception:
        return Any


def _with_unions(text: str) -> str:
    """Returns an annotation with ``Union[X, Y]`` for ``X | Y``, which Python 3.9 cannot evaluate."""
    import ast

    class Unions(ast.NodeTransformer):
        def visit_BinOp(self, node: ast.BinOp) -> Any:
            self.generic_visit(node)
            if not isinstance(node.op, ast.BitOr):
                return node
            options = ast.Tuple([node.left, node.right], ast.Load())
            return ast.Subscript(ast.Name("__Union", ast.Load()), options, ast.Load())

    return ast.unparse(ast.fix_missing_locations(Unions().visit(ast.parse(text.strip(), mode="eval"))))
