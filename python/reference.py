"""Writes docs/reference/python.md from the docstrings of the package: `python reference.py`."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "src"))

import sandcell

TARGET = Path(__file__).resolve().parent.parent / "docs" / "reference" / "python.md"
HEAD = """# Python package

Made from the docstrings by `python/reference.py`; do not edit. The [guide](../guides/python.md) starts from nothing.
Times are in seconds unless a name ends in `_ms`, sizes in bytes unless it ends in `_mb` (MiB).
"""


def text_of(thing: Any) -> str:
    """Returns a docstring as Markdown: examples become blocks, roles of Sphinx become names."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", inspect.getdoc(thing) or "").replace("``", "`")
    return re.sub(r"(?ms)^>>> .*?(?=^\s*$|\Z)", lambda found: f"```pycon\n{found[0].rstrip()}\n```", text)


def signature(name: str, thing: Any) -> str:
    shown = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(thing)))
    shown = shown.replace("(self, ", "(").replace("(self)", "()")
    if shown.startswith(
        ("(run: Run, ", "(source: ", "(change: str, ", "(data: dict", "(answer: dict", "(core: ", "(iterable=")
    ):
        shown = ""  # Made by the package only.
    if inspect.isclass(thing):
        shown = shown.replace(" -> None", "")
    prefix = "async " if inspect.iscoroutinefunction(thing) else ""
    return f"{prefix}{name}{shown}"


def members(kind: type) -> list[str]:
    lines: list[str] = []
    for name, member in vars(kind).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            lines += [f"#### `{kind.__name__}.{name}`", "", text_of(member), ""]
        elif inspect.isfunction(member):
            lines += [f"#### `{signature(f'{kind.__name__}.{name}', member)}`", "", text_of(member), ""]
    return lines + attributes(kind)


def attributes(kind: type) -> list[str]:
    """Returns the attributes that comments of the form `#: …` describe."""
    found = re.findall(
        r"((?:^ +#: .*\n)+) +(?:self\.)?(\w+)(?:: ([^=\n]+?))?(?: = .*)?\n", inspect.getsource(kind), re.MULTILINE
    )
    if not found:
        return []
    rows = ["| attribute | type | |", "|---|---|---|"]
    for comment, name, annotation in found:
        about = " ".join(line.strip()[3:] for line in comment.splitlines()).replace("``", "`").replace("|", "\\|")
        shown = annotation.replace("|", "\\|")
        rows.append(f"| `{name}` | {f'`{shown}`' if shown else ''} | {about} |")
    return [*rows, ""]


def reference() -> str:
    public = {name: getattr(sandcell, name) for name in sandcell.__all__ if not name.startswith("_")}
    functions = [name for name, thing in public.items() if inspect.isfunction(thing)]
    errors = [name for name, thing in public.items() if inspect.isclass(thing) and issubclass(thing, Exception)]
    classes = [name for name in public if name not in functions and name not in errors]
    lines = [HEAD, "## Functions", ""]
    for name in functions:
        lines += [f"### `{signature(name, public[name])}`", "", text_of(public[name]), ""]
    lines += ["## Classes", ""]
    for name in classes:
        lines += [f"### `{signature(name, public[name])}`", "", text_of(public[name]), "", *members(public[name])]
    lines += ["## Errors", "", text_of(sandcell.SandcellError), "", "| class | code | |", "|---|---|---|"]
    for name in errors:
        if name != "SandcellError":
            lines.append(f"| `{name}` | `{public[name].code}` | {text_of(public[name])} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    TARGET.write_text(reference(), "utf-8")
