"""Functions of this program that code in a sandbox calls as ``tools.functions.NAME(name=value)``.

Schemas are made from signatures and docstrings when the sandbox object is made, so a function that cannot be offered is
refused there. The calls arrive in a thread (``_function_calls``) that starts when the sandbox itself is made.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import keyword
import logging
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from . import _docstrings
from ._errors import InvalidArgumentError
from ._shapes import Convert, Property, Shape, Shapes, hints_of, object_schema
from ._values import Unfit, json_value

if TYPE_CHECKING:
    import asyncio

    from ._call import Channel
    from ._function_calls import FunctionCalls

_log = logging.getLogger("sandcell")

#: Functions of one sandbox, and the length of a name, of a description and of a schema; the server has the same bounds.
_MAX_FUNCTIONS = 128
_MAX_NAME = 64
_MAX_DESCRIPTION = 2000
_MAX_SCHEMA_BYTES = 64 << 10
#: Bytes of a return value as JSON.
MAX_VALUE_BYTES = 8 << 20
#: Characters of the text of an error.
_MAX_ERROR = 4000


class FunctionSet:
    """The functions of one sandbox. The sandbox owns it; the thread that serves the calls does not.

    If ``in_loop`` is true, coroutines run in the event loop that makes the sandbox. Otherwise they run in a separate loop.
    """

    def __init__(self, tools: Any, in_loop: bool) -> None:
        self._functions = {name: _Function(name, function) for name, function in _named(tools)}
        if len(self._functions) > _MAX_FUNCTIONS:
            raise InvalidArgumentError(
                f"tools has {len(self._functions)} functions", f"pass at most {_MAX_FUNCTIONS} functions"
            )
        self._context = contextvars.copy_context()
        self._in_loop = in_loop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls: FunctionCalls | None = None
        # Taken for ever by the first one that makes the sandbox.
        self._started = threading.Lock()

    def specifications(self) -> list[dict[str, Any]]:
        """Returns the functions for the server."""
        return [
            {"name": name, "description": each.description, "input_schema": each.schema}
            for name, each in self._functions.items()
        ]

    def serve(self, channel: Channel, sandbox: str) -> None:
        """Starts to take calls of a sandbox, if that has not started yet. Returns at once."""
        if not self._started.acquire(blocking=False):
            return
        try:
            from ._function_calls import FunctionCalls

            if self._in_loop:
                import asyncio

                self._loop = asyncio.get_running_loop()
            self._calls = FunctionCalls(self, channel, sandbox)
            self._calls.start()
        except BaseException:
            self._started.release()
            raise

    def stop(self) -> None:
        """Stops to take calls. Functions that run are not interrupted; their results are dropped."""
        if self._calls is not None:
            self._calls.stop()

    def call(self, name: str, arguments: dict[str, Any]) -> tuple[dict[str, Any], int]:
        """Calls a function; returns its value or its error for the server, and about how many bytes that has."""
        try:
            function = self._functions.get(name)
            if function is None:
                raise LookupError(f"the program has no function {name}")
            value = self._context.copy().run(self._invoke, function, arguments)
            return _outcome(name, value)
        except BaseException as error:  # Also SystemExit: it would end a thread, not the program.
            _log.debug("the function %s failed", name, exc_info=True)
            text = _text(error)
            return {"error": text}, len(text)

    def _invoke(self, function: _Function, arguments: dict[str, Any]) -> Any:
        value = function.invoke(arguments)
        return self._awaited(value) if inspect.isawaitable(value) else value

    def _awaited(self, value: Awaitable[Any]) -> Any:
        import asyncio

        async def wait() -> Any:
            return await value

        if not self._in_loop:
            return asyncio.run(wait())
        waiting = wait()
        try:
            if self._loop is None:
                raise RuntimeError("no event loop")
            future = asyncio.run_coroutine_threadsafe(waiting, self._loop)
        except RuntimeError:
            waiting.close()
            if inspect.iscoroutine(value):
                value.close()
            raise RuntimeError("the event loop that made the sandbox is closed") from None
        return future.result()


class _Function:
    """A function, its description, and the schema of its arguments."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._function = function
        #: The parameters that have no names for callers, and their defaults.
        self._positional: list[tuple[str, Any]] = []
        self._converts: dict[str, Convert] = {}
        self._rest: Convert = None
        documented = function
        while isinstance(documented, functools.partial):
            documented = documented.func
        self.description, texts = _docstrings.read(getattr(documented, "__doc__", None))
        self.description = self.description[:_MAX_DESCRIPTION]
        hints = hints_of(documented if hasattr(documented, "__name__") else type(documented).__call__)
        self.schema = self._schema(name, hints, texts)
        _check_size(name, self.schema)

    def _schema(self, name: str, hints: dict[str, Any], texts: dict[str, str]) -> dict[str, Any]:
        shapes = Shapes()
        properties: dict[str, Property] = {}
        additional: bool | dict[str, Any] = False
        for parameter in _parameters(name, self._function):
            try:
                shape = shapes.of(hints[parameter.name]) if parameter.name in hints else Shape({})
            except Unfit as error:
                raise InvalidArgumentError(f"the parameter {parameter.name} of {name}: {error}", _REMEDY) from None
            if parameter.kind is parameter.VAR_POSITIONAL:
                raise InvalidArgumentError(
                    f"{name} takes *{parameter.name}; arguments of tools have names", "take a list in its place"
                )
            if parameter.kind is parameter.VAR_KEYWORD:
                additional = shape.schema or True
                self._rest = shape.convert
                continue
            if parameter.kind is parameter.POSITIONAL_ONLY:
                self._positional.append((parameter.name, parameter.default))
            self._converts[parameter.name] = shape.convert
            required = parameter.default is parameter.empty
            default = {} if required else {"default": parameter.default}
            text = texts.get(parameter.name, "")
            properties[parameter.name] = Property(shape, required, description=text, **default)
        return object_schema(properties, additional)

    def invoke(self, arguments: dict[str, Any]) -> Any:
        """Calls the function with arguments of JSON."""
        values: dict[str, Any] = {}
        for name, value in arguments.items():
            convert = self._converts.get(name, self._rest)
            try:
                values[name] = value if convert is None else convert(value)
            except Exception as error:
                raise ValueError(f"the argument {name}: {_text(error)}") from error
        positional = [values.pop(name, default) for name, default in self._positional]
        return self._function(*positional, **values)


_REMEDY = "annotate it with types of JSON (int, float, bool, str, list, dict), dataclasses or enumerations"


def _named(tools: Any) -> list[tuple[str, Callable[..., Any]]]:
    """Returns functions with their names, each of which is checked."""
    if isinstance(tools, Mapping):
        named = list(tools.items())
    elif isinstance(tools, Iterable) and not isinstance(tools, (str, bytes)):
        named = [(_name_of(function), function) for function in tools]
    else:
        raise InvalidArgumentError(
            f"tools must be a list of functions, not {type(tools).__name__}", 'pass [function] or {"name": function}'
        )
    seen: set[str] = set()
    for name, function in named:
        if not callable(function) or isinstance(function, type):
            kind = f"the class {function.__name__}" if isinstance(function, type) else type(function).__name__
            raise InvalidArgumentError(f"a tool must be a function, not {kind}", "pass a function, or a bound method")
        _check_name(name)
        if name in seen:
            raise InvalidArgumentError(f"two tools have the name {name}", 'pass {"name": function} to name them')
        seen.add(name)
    return named


def _name_of(function: Any) -> Any:
    plain = function
    while isinstance(plain, functools.partial):
        plain = plain.func
    name = getattr(plain, "__name__", None)
    if name is None and callable(function):
        raise InvalidArgumentError(f"the tool {function!r} has no name", 'pass {"name": function}')
    return name


def _check_name(name: Any) -> None:
    # A name that begins with an underscore is no attribute of `tools.functions`.
    plain = isinstance(name, str) and name.isidentifier() and name.isascii() and len(name) <= _MAX_NAME
    if not plain or keyword.iskeyword(name) or name.startswith("_"):
        raise InvalidArgumentError(
            f"{name!r} cannot be the name of a tool",
            f'name it with {{"name": function}}: letters, digits and _, a letter first, at most {_MAX_NAME} characters',
        )


def _parameters(name: str, function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        if sys.version_info >= (3, 14):
            import annotationlib

            # Names of annotations that are not known at run time do not matter here.
            signature = inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
        else:
            signature = inspect.signature(function)
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"the parameters of {name} are not known", "pass a function written in Python") from None
    return list(signature.parameters.values())


def _check_size(name: str, schema: dict[str, Any]) -> None:
    import json

    size = len(json.dumps(schema, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace"))
    if size > _MAX_SCHEMA_BYTES:
        raise InvalidArgumentError(
            f"the parameters of {name} have a schema of {size:,} bytes; at most {_MAX_SCHEMA_BYTES:,} can be sent",
            "use fewer or simpler types",
        )


def _outcome(name: str, value: Any) -> tuple[dict[str, Any], int]:
    import json

    try:
        plain = json_value(value)
    except Unfit as error:
        raise TypeError(f"{name} returned what JSON does not have; {error}") from None
    size = len(json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode())
    if size > MAX_VALUE_BYTES:
        raise ValueError(f"{name} returned {size:,} bytes of JSON; at most {MAX_VALUE_BYTES:,} can be sent: return less")
    return {"value": plain}, size


def _text(error: BaseException) -> str:
    """Returns "TypeName: message"."""
    try:
        message = str(error)
    except Exception:
        message = ""
    name = type(error).__name__
    text = f"{name}: {message}" if message else name
    return text[:_MAX_ERROR].encode("utf-8", "backslashreplace").decode()
